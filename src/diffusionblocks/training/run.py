"""A run folder: the resolved settings, what is trained for them, and how to get it back.

RUN/config.json           resolved settings; another config in the same folder is refused
RUN/provenance.json       command, commit, hardware and versions that started it
RUN/data.json             what is known of the data: classes, their scale; RUN/tokenizer/ where they are text
RUN/block-k/              checkpoint-N/ (the newest two), metrics.jsonl, memory.json; a control: network, member-k
RUN/trunk/                the run of the trunk that the blocks start from, if they have one of their own
RUN/tensorboard/          the same metrics
RUN/model/                the finished model, averaged weights if there are any
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffusionblocks import checkpoint
from diffusionblocks.block import Block
from diffusionblocks.config import SAMPLING, read_json, validate
from diffusionblocks.errors import InputError
from diffusionblocks.families import block_class_of
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.provenance import provenance
from diffusionblocks.run_config import AnyRun, run_config_class
from diffusionblocks.training.data import TOKENIZER_FOLDER, DataFacts, keep, load_split, training_batches
from diffusionblocks.training.networks import blockwise_of, build_units
from diffusionblocks.training.state import load_unit, newest
from diffusionblocks.training.trainer import Trainer

CONFIG_FILE = "config.json"
PROVENANCE_FILE = "provenance.json"
TRUNK = "trunk"
OPERATION = ("data_dir", "data", "num_workers", "rotate_every", "checkpoint_every")
"""Settings that say where and how a run is done and have no part in its result: they may change when it goes on."""


def claim_folder(run_dir: Path, config: AnyRun) -> None:
    """Make the folder a run of this config, or check that it is one; what has no part in the result may differ.

    Raises:
        InputError: the folder has another config (the first setting that differs is named), or foreign files.
    """
    path = run_dir / CONFIG_FILE
    if path.exists():
        stored, given = load_config(run_dir).model_dump(), config.model_dump()
        free = {*OPERATION, *(SAMPLING - config.blockwise().identity().keys())}
        for name, value in given.items():
            if name not in free and stored.get(name) != value:
                raise InputError(
                    name, value, f"{stored[name]!r}, as in {path}", "take another --run folder, or the same settings"
                )
        if stored != given:  # the data have moved, say, or the plan is another
            checkpoint.write_text(path, config.model_dump_json(indent=1))
        return
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise InputError("run", str(run_dir), "a new or empty folder, or one with a run", "take another")
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text(path, config.model_dump_json(indent=1))
    checkpoint.write_text(run_dir / PROVENANCE_FILE, json.dumps(provenance(), indent=1))


def load_config(run_dir: Path) -> AnyRun:
    """The settings of a run.

    Raises:
        InputError: not a run folder, or a config that this version does not read.
    """
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise InputError("run", str(run_dir), f"a run folder with {CONFIG_FILE}", "make one with `dblocks train`")
    values = read_json(path)
    return validate(run_config_class(values, str(path)), values, str(path))


def make_trainers(
    config: AnyRun,
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
    data = load_split(config, "train", run_dir)
    batches, absent = training_batches(config, data)
    facts = DataFacts.of(config, data)
    units = build_units(config, facts, only)
    budget, start = config.unit_budget(len(data)), None
    branches = config.method == "blocks" and bool(config.trunk)
    if trunk_dir is not None:
        if not branches:
            raise InputError("from", str(trunk_dir), "blocks with a trunk", "set trunk=0.5, say")
        _check_trunk(trunk_dir, config)
    claim_folder(run_dir, config)
    keep(data, facts, run_dir)
    if branches:
        if trunk_dir is None:
            trunk_dir, of_trunk = run_dir / TRUNK, config.model_copy(update={"method": "trunk"})
            claim_folder(trunk_dir, of_trunk)
            keep(data, facts, trunk_dir)
            whole = of_trunk.unit_budget(len(data))
            trunk_units = build_units(of_trunk, facts)
            yield Trainer(trunk_units, batches, config.training(), trunk_dir, device, progress, budget=whole)
        start = _finished_trunk(trunk_dir, budget.first)
    trainer = Trainer(units, batches, config.training(), run_dir, device, progress, budget=budget, trunk=start)
    if absent:
        trainer.messages.append(f"no training sample of: {', '.join(absent)}")
    yield trainer


def _check_trunk(trunk_dir: Path, config: AnyRun) -> None:
    """Refuse a run that is not the trunk of this config."""
    stored, wanted = load_config(trunk_dir), config.model_copy(update={"method": "trunk"})
    for name, value in wanted.model_dump().items():
        found = getattr(stored, name)
        if name not in {*OPERATION, *SAMPLING, "recipe"} and found != value:
            raise InputError(name, value, f"{found!r}, as in {trunk_dir}", "give --from a trunk of the same settings")


def _finished_trunk(trunk_dir: Path, updates: int) -> Path:
    path, refused = newest(trunk_dir / "block-0")
    done = 0 if path is None else int(path.name.rpartition("-")[2])
    if path is None or done != updates:
        todo = refused[0] if refused else "finish it with the command that began it"
        raise InputError("from", str(trunk_dir), f"a trunk after its {updates} updates, not {done}", todo)
    return path


def load_trained(run_dir: Path, config: AnyRun) -> tuple[Any, dict[str, int]]:
    """The network of a run from its newest whole checkpoints (averaged weights if there are any), to evaluate.

    Returns:
        (a BlockwiseModel, a plain network or an ensemble; updates of each unit by folder name).

    Raises:
        InputError: a unit without a whole checkpoint, by name.
    """
    facts = DataFacts.read(run_dir)
    units, updates = build_units(config, facts), {}
    for unit in units:
        folder = run_dir / str(unit.name)
        path, refused = newest(folder)
        if path is None:
            reason = refused[0] if refused else "train it first"
            raise InputError("run", str(folder), "a unit with a checkpoint", reason)
        updates[folder.name] = load_unit(path, unit, averaged=True)
        unit.eval()
    if config.method == "shallow-ensemble":
        ensemble: Any = block_class_of(config.family).ensemble
        return ensemble(units).eval(), updates
    if isinstance(units[0], Block):
        return BlockwiseModel(units, blockwise_of(config, facts)).eval(), updates  # type: ignore[arg-type]
    return units[0], updates


def export_model(run_dir: Path, config: AnyRun, num_updates: int) -> Path | None:
    """Write RUN/model if every unit has had its updates; None if one has not (blocks trained elsewhere, say)."""
    if any(newest(run_dir / str(unit.name))[0] is None for unit in build_units(config, DataFacts.read(run_dir))):
        return None
    model, updates = load_trained(run_dir, config)
    if min(updates.values()) < num_updates:
        return None
    folder = run_dir / "model"
    if isinstance(model, BlockwiseModel):
        model.save_pretrained(folder)
        if (run_dir / TOKENIZER_FOLDER).is_dir():
            shutil.copytree(run_dir / TOKENIZER_FOLDER, folder / TOKENIZER_FOLDER, dirs_exist_ok=True)
        return folder
    with checkpoint.atomic_folder(folder) as draft:
        if config.method != "shallow-ensemble":
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
