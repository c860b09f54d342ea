"""A run folder: the resolved settings, what is trained for them, and how to get it back.

RUN/config.json           resolved settings; another config in the same folder is refused
RUN/provenance.json       command, commit, hardware and versions that started it
RUN/block-k/              checkpoint-N/ (the newest two), metrics.jsonl, memory.json; a control: network, member-k
RUN/trunk/                the run of the trunk that the blocks start from, if they have one of their own
RUN/tensorboard/          the same metrics
RUN/model/                the finished model, averaged weights if there are any
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn
from transformers import ViTConfig, ViTForImageClassification

from diffusionblocks import checkpoint
from diffusionblocks.config import BlockwiseConfig, read_json, validate
from diffusionblocks.conversion import build_block, with_measured_scale
from diffusionblocks.data.augment import RandAugment
from diffusionblocks.data.batches import ImageBatches
from diffusionblocks.data.images import ImageSet, check_trainable
from diffusionblocks.data.sources import load_images
from diffusionblocks.errors import InputError
from diffusionblocks.families.vit import PlainVit, VitEnsemble
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.provenance import provenance
from diffusionblocks.randomness import seeded
from diffusionblocks.recipes import RunConfig
from diffusionblocks.training.state import load_unit, newest
from diffusionblocks.training.trainer import Trainer

CONFIG_FILE = "config.json"
PROVENANCE_FILE = "provenance.json"
TRUNK = "trunk"
OPERATION = ("data_dir", "num_workers", "rotate_every", "checkpoint_every")
"""Settings that say where and how a run is done and have no part in its result: they may change when it goes on."""


def claim_folder(run_dir: Path, config: RunConfig) -> None:
    """Make the folder a run of this config, or check that it is one; what has no part in the result may differ.

    Raises:
        InputError: the folder has another config (the first setting that differs is named), or foreign files.
    """
    path = run_dir / CONFIG_FILE
    if path.exists():
        stored, given = load_config(run_dir).model_dump(), config.model_dump()
        for name, value in given.items():
            if name not in OPERATION and stored[name] != value:
                raise InputError(
                    name, value, f"{stored[name]!r}, as in {path}", "take another --run folder, or the same settings"
                )
        if stored != given:  # the data have moved, say
            checkpoint.write_text(path, config.model_dump_json(indent=1))
        return
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise InputError("run", str(run_dir), "a new or empty folder, or one with a run", "take another")
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text(path, config.model_dump_json(indent=1))
    checkpoint.write_text(run_dir / PROVENANCE_FILE, json.dumps(provenance(), indent=1))


def load_config(run_dir: Path) -> RunConfig:
    """The settings of a run.

    Raises:
        InputError: not a run folder, or a config that this version does not read.
    """
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise InputError("run", str(run_dir), f"a run folder with {CONFIG_FILE}", "make one with `dblocks train`")
    return validate(RunConfig, read_json(path), str(path))


def load_split(config: RunConfig, split: str) -> ImageSet:
    """The images of a split, checked against the recipe's size, channels and classes.

    Raises:
        InputError: what the data are and what the recipe expects.
    """
    images = load_images(config.dataset, split, config.data_dir, config.fold, seed=0)  # type: ignore[arg-type]
    for name, found in (
        ("image_size", images.image_size),
        ("num_channels", images.num_channels),
        ("num_classes", images.num_classes),
    ):
        if found != getattr(config, name):
            raise InputError(name, getattr(config, name), f"{found}, as in the {config.dataset} data")
    return images


def backbone_config(config: RunConfig, depth: int, classes: tuple[str, ...] = ()) -> ViTConfig:
    """The ViT of a run with the given number of layers."""
    names = list(classes) or [str(k) for k in range(config.num_classes)]
    return ViTConfig(
        hidden_size=config.hidden_size,
        num_hidden_layers=depth,
        num_attention_heads=config.num_heads,
        intermediate_size=config.intermediate_size or 4 * config.hidden_size,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=0.0,
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_channels=config.num_channels,
        id2label=dict(enumerate(names)),
        label2id={name: k for k, name in enumerate(names)},
    )


def build_units(config: RunConfig, classes: tuple[str, ...] = (), only: int | None = None) -> list[nn.Module]:
    """What a run trains, freshly initialised: its blocks (or the one asked for), its trunk, or a control's networks.

    Raises:
        InputError: a block that is not there, or asked of a control.
    """
    if config.method != "blocks" and only is not None:
        raise InputError("block", only, f"no block: the method {config.method} has none")
    if only is not None and not 0 <= only < config.num_blocks:
        raise InputError("block", only, f"a block from 0 to {config.num_blocks - 1}")
    base, blockwise = backbone_config(config, config.num_layers, classes), blockwise_of(config, classes)
    if config.method == "blocks":
        which = range(config.num_blocks) if only is None else [only]
        return [build_block(base, blockwise, index, config.seed) for index in which]
    base = backbone_config(config, config.depth(), classes)
    if config.method == "trunk":
        return [build_block(base, blockwise, 0, config.seed)]
    if config.method == "shallow-ensemble":
        return [_plain(base, config.seed, index, f"member-{index}") for index in range(config.num_blocks)]
    return [_plain(base, config.seed, 0, "network")]


def _plain(base: ViTConfig, seed: int, index: int, name: str) -> PlainVit:
    with seeded("cpu", seed, "backbone", index):
        return PlainVit(ViTForImageClassification(base), index, name)


def blockwise_of(config: RunConfig, classes: tuple[str, ...] = ()) -> BlockwiseConfig:
    """The blockwise config of a run, with sigma_data measured where it is not given; a trunk's has one block."""
    blockwise = with_measured_scale(config.blockwise(), backbone_config(config, config.num_layers, classes))
    if config.method != "trunk":
        return blockwise
    return blockwise.model_copy(update={"num_blocks": 1, "layer_split": None, "num_sampling_steps": None})


def make_trainers(
    config: RunConfig,
    run_dir: Path,
    only: int | None = None,
    device: str = "cpu",
    progress: bool = True,
    trunk_dir: Path | None = None,
) -> Iterator[Trainer]:
    """The trainers of a run, one after the other, their units brought to where the run folder says they are.

    One trainer, or two if the blocks start from a trunk of their own: train the first before asking for the second.
    The data are read and checked before the folder is touched.

    Args:
        config: the run's settings.
        run_dir: its folder.
        only: train this block alone.
        device: where to train.
        progress: show progress bars.
        trunk_dir: the run of a trunk to start from, trained elsewhere; without it RUN/trunk is trained first.
    """
    images = load_split(config, "train")
    units, absent = build_units(config, images.classes, only), check_trainable(images)
    batches = ImageBatches(images, config.flip, RandAugment() if config.randaugment else None)
    budget, start = config.unit_budget(len(images)), None
    branches = config.method == "blocks" and bool(config.trunk)
    if trunk_dir is not None:
        if not branches:
            raise InputError("from", str(trunk_dir), "blocks with a trunk", "set trunk=0.5, say")
        _check_trunk(trunk_dir, config)
    claim_folder(run_dir, config)
    if branches:
        if trunk_dir is None:
            trunk_dir, of_trunk = run_dir / TRUNK, config.model_copy(update={"method": "trunk"})
            claim_folder(trunk_dir, of_trunk)
            whole = of_trunk.unit_budget(len(images))
            trunk_units = build_units(of_trunk, images.classes)
            yield Trainer(trunk_units, batches, config.training(), trunk_dir, device, progress, budget=whole)
        start = _finished_trunk(trunk_dir, budget.first)
    trainer = Trainer(units, batches, config.training(), run_dir, device, progress, budget=budget, trunk=start)
    if absent:
        trainer.messages.append(f"no training image of: {', '.join(absent)}")
    yield trainer


def _check_trunk(trunk_dir: Path, config: RunConfig) -> None:
    """Refuse a run that is not the trunk of this config."""
    stored, wanted = load_config(trunk_dir), config.model_copy(update={"method": "trunk"})
    for name, value in wanted.model_dump().items():
        found = getattr(stored, name)
        if name not in (*OPERATION, "recipe") and found != value:
            raise InputError(name, value, f"{found!r}, as in {trunk_dir}", "give --from a trunk of the same settings")


def _finished_trunk(trunk_dir: Path, updates: int) -> Path:
    path, refused = newest(trunk_dir / "block-0")
    done = 0 if path is None else int(path.name.rpartition("-")[2])
    if path is None or done != updates:
        todo = refused[0] if refused else "finish it with the command that began it"
        raise InputError("from", str(trunk_dir), f"a trunk after its {updates} updates, not {done}", todo)
    return path


def load_trained(run_dir: Path, config: RunConfig) -> tuple[BlockwiseModel | PlainVit | VitEnsemble, dict[str, int]]:
    """The network of a run from its newest whole checkpoints (averaged weights if there are any), to evaluate.

    Returns:
        (model, updates of each unit by folder name).

    Raises:
        InputError: a unit without a whole checkpoint, by name.
    """
    units, updates = build_units(config), {}
    for unit in units:
        folder = run_dir / str(unit.name)
        path, refused = newest(folder)
        if path is None:
            reason = refused[0] if refused else "train it first"
            raise InputError("run", str(folder), "a unit with a checkpoint", reason)
        updates[folder.name] = load_unit(path, unit, averaged=True)
        unit.eval()
    if config.method in ("blocks", "trunk"):
        return BlockwiseModel(units, blockwise_of(config)).eval(), updates  # type: ignore[arg-type]
    networks: list[PlainVit] = units  # type: ignore[assignment]
    return VitEnsemble(networks).eval() if config.method == "shallow-ensemble" else networks[0], updates


def export_model(run_dir: Path, config: RunConfig, num_updates: int) -> Path | None:
    """Write RUN/model if every unit has had its updates; None if one has not (blocks trained elsewhere, say)."""
    if any(newest(run_dir / str(unit.name))[0] is None for unit in build_units(config)):
        return None
    model, updates = load_trained(run_dir, config)
    if min(updates.values()) < num_updates:
        return None
    folder = run_dir / "model"
    if isinstance(model, BlockwiseModel):
        model.save_pretrained(folder)
        return folder
    with checkpoint.atomic_folder(folder) as draft:
        if isinstance(model, PlainVit):
            checkpoint.save_network(model, draft)
        else:
            for member in model.members:
                (draft / str(member.name)).mkdir()
                checkpoint.save_network(member, draft / str(member.name))
    return folder


def write_result(run_dir: Path, name: str, result: dict[str, Any]) -> Path:
    """Write a JSON result into a run folder."""
    path = run_dir / name
    checkpoint.write_text(path, json.dumps(result, indent=1))
    return path
