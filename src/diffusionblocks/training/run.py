"""A run folder: the resolved settings, what is trained for them, and how to get it back.

RUN/config.json           resolved settings; another config in the same folder is refused
RUN/provenance.json       command, commit, hardware and versions that started it
RUN/block-k/              checkpoint-N/ (the newest two), metrics.jsonl, memory.json; `network` for a control
RUN/tensorboard/          the same metrics
RUN/model/                the finished model, averaged weights if there are any
"""

import json
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
from diffusionblocks.families.vit import PlainVit
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.provenance import provenance
from diffusionblocks.randomness import seeded
from diffusionblocks.recipes import RunConfig
from diffusionblocks.training.state import load_unit, newest, unit_folder
from diffusionblocks.training.trainer import Trainer

CONFIG_FILE = "config.json"
PROVENANCE_FILE = "provenance.json"


def claim_folder(run_dir: Path, config: RunConfig) -> None:
    """Make the folder a run of this config, or check that it is one.

    Raises:
        InputError: the folder has another config (the first setting that differs is named), or foreign files.
    """
    path = run_dir / CONFIG_FILE
    if path.exists():
        stored, given = load_config(run_dir).model_dump(), config.model_dump()
        for name, value in given.items():
            if stored[name] != value:
                raise InputError(
                    name, value, f"{stored[name]!r}, as in {path}", "take another --run folder, or the same settings"
                )
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
    """What a run trains, freshly initialised: its blocks (or the one asked for), or the control's network.

    Raises:
        InputError: a block that is not there, or asked of a control.
    """
    if config.method == "blocks":
        if only is not None and not 0 <= only < config.num_blocks:
            raise InputError("block", only, f"a block from 0 to {config.num_blocks - 1}")
        base, blockwise = backbone_config(config, config.num_layers, classes), blockwise_of(config, classes)
        which = range(config.num_blocks) if only is None else [only]
        return [build_block(base, blockwise, index, config.seed) for index in which]
    if only is not None:
        raise InputError("block", only, f"no block: the method {config.method} has none")
    with seeded("cpu", config.seed, "backbone", 0):
        return [PlainVit(ViTForImageClassification(backbone_config(config, config.depth(), classes)))]


def blockwise_of(config: RunConfig, classes: tuple[str, ...] = ()) -> BlockwiseConfig:
    """The blockwise config of a run, with sigma_data measured where it is not given."""
    return with_measured_scale(config.blockwise(), backbone_config(config, config.num_layers, classes))


def make_trainer(
    config: RunConfig, run_dir: Path, only: int | None = None, device: str = "cpu", progress: bool = True
) -> Trainer:
    """A trainer for a run, its units brought to where the run folder says they are.

    The data are read and checked before the folder is touched.
    """
    images = load_split(config, "train")
    absent = check_trainable(images)
    units = build_units(config, images.classes, only)
    claim_folder(run_dir, config)
    batches = ImageBatches(images, config.flip, RandAugment() if config.randaugment else None)
    trainer = Trainer(units, batches, config.training(), run_dir, device, progress)
    if absent:
        trainer.messages.append(f"no training image of: {', '.join(absent)}")
    return trainer


def load_trained(run_dir: Path, config: RunConfig) -> tuple[BlockwiseModel | PlainVit, dict[str, int]]:
    """The network of a run from its newest whole checkpoints (averaged weights if there are any), to evaluate.

    Returns:
        (model, updates of each unit by folder name).

    Raises:
        InputError: a unit without a whole checkpoint, by name.
    """
    units, updates = build_units(config), {}
    for unit in units:
        folder = unit_folder(run_dir, unit)
        path, refused = newest(folder)
        if path is None:
            reason = refused[0] if refused else "train it first"
            raise InputError("run", str(folder), "a unit with a checkpoint", reason)
        updates[folder.name] = load_unit(path, unit, averaged=True)
        unit.eval()
    if config.method == "blocks":
        return BlockwiseModel(units, blockwise_of(config)).eval(), updates  # type: ignore[arg-type]
    assert isinstance(units[0], PlainVit)
    return units[0], updates


def export_model(run_dir: Path, config: RunConfig, num_updates: int) -> Path | None:
    """Write RUN/model if every unit has had its updates; None if one has not (blocks trained elsewhere, say)."""
    if any(newest(unit_folder(run_dir, unit))[0] is None for unit in build_units(config)):
        return None
    model, updates = load_trained(run_dir, config)
    if min(updates.values()) < num_updates:
        return None
    folder = run_dir / "model"
    if isinstance(model, BlockwiseModel):
        model.save_pretrained(folder)
    else:
        with checkpoint.atomic_folder(folder) as draft:
            checkpoint.save_network(model, draft)
    return folder


def write_result(run_dir: Path, name: str, result: dict[str, Any]) -> Path:
    """Write a JSON result into a run folder."""
    path = run_dir / name
    checkpoint.write_text(path, json.dumps(result, indent=1))
    return path
