"""What the report of a run says: its headline, its figures, its samples and how to do it again."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import nn

from diffusionblocks.config import read_json
from diffusionblocks.data.images import ImageSet
from diffusionblocks.memory import KINDS
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.provenance import provenance
from diffusionblocks.recipes import resolve
from diffusionblocks.report import figures
from diffusionblocks.report.samples import FEW, choose_samples
from diffusionblocks.report.text import byte_unit, memory_total, percent, points, signed, wilson
from diffusionblocks.run_config import AnyRun
from diffusionblocks.training.progress import METRICS
from diffusionblocks.training.run import PROVENANCE_FILE, load_config, load_trained


def run_page(run_dir: Path, split: str, images: ImageSet, prefix: str = "", device: str = "cpu") -> dict[str, Any]:
    """Everything the template needs of a run that has been evaluated on the split.

    Args:
        run_dir: the run folder, with eval-SPLIT.json.
        split: the split that was scored.
        images: its images.
        prefix: goes before the ids of its sections and figures, where a page has more than this run.
        device: where the samples are classified.

    Raises:
        InputError: a run folder that is not whole.
    """
    config, result = load_config(run_dir), read_json(run_dir / f"eval-{split}.json")
    model, _ = load_trained(run_dir, config)
    is_blocks, n = isinstance(model, BlockwiseModel), result["images"]
    return {
        "prefix": prefix,
        "title": f"{config.recipe}: {method_name(config)}",
        "facts": _facts(config, result, split),
        "headline": _headline(result, n, split),
        "tiles": _tiles(result, n),
        "law": _law(model, result, f"{prefix}law"),
        "plan": result.get("plan"),
        "losses": _losses(run_dir, f"{prefix}loss", is_blocks and config.weight != "none"),
        "chain": _chain(result, n, f"{prefix}chain") if is_blocks else None,
        "oracle": _oracle(result, n, f"{prefix}oracle") if is_blocks else None,
        "blocks": [_block_row(row) for row in result.get("blocks", [])],
        "n": n,
        "split": split,
        "memory": _memory(run_dir, config, f"{prefix}memory"),
        "samples": choose_samples(model.to(device), images, result),
        "few": FEW,
        "size": config.image_size,
        "channels": "grey" if config.num_channels == 1 else "RGB",
        "start": _start_words(result) if is_blocks else "",
        "settings": config.model_dump(),
        "commands": _commands(run_dir, config, result, split),
        "made": _made(run_dir),
    }


def method_name(config: AnyRun) -> str:
    """The method with its number of blocks, and the preset where it is not ours."""
    name = f"{config.num_blocks} blocks" if config.method == "blocks" else config.method
    name += " after a trunk" if config.method == "blocks" and config.trunk else ""
    return f"{name}, paper preset" if config.preset == "paper" else name


def _facts(config: AnyRun, result: dict[str, Any], split: str) -> str:
    updates = sorted(set(result["updates"].values()))
    each = " each" if len(result["updates"]) > 1 else ""
    return (
        f"{config.dataset}, {result['images']:,} {split} images; one seed ({config.seed}); "
        f"{' to '.join(f'{u:,}' for u in (updates[0], updates[-1])[: len(updates)])} updates{each} "
        f"of {config.batch_size} samples; {config.num_layers} layers of width {config.hidden_size}"
    )


def _headline(result: dict[str, Any], n: int, split: str) -> list[str]:
    """The gain of the chain in words, whether there is one or not; the accuracy of a control."""
    if "blocks" not in result:
        interval = wilson(result["accuracy"], n)
        return [f"{percent(result['accuracy'])} of {n:,} {split} images are right (95% interval {interval}), one seed."]
    first, last = (result["blocks"][k]["chain_after"]["accuracy"] for k in (0, -1))
    gain, images = result["chain_gain"], round(result["chain_gain"] * n)
    scored = f"of {n:,} {split} images, one seed"
    if gain > 0:
        lead = f"The chain gains {points(gain).lstrip('+')} over block 0 alone "
        lead += f"({percent(first)} to {percent(last)} {scored})"
        lead += f": {images:,} image{'s' if images > 1 else ''} more."
    elif gain == 0:
        lead = f"The chain gains nothing over block 0 alone: both have {percent(last)} {scored}."
    else:
        lead = f"The chain is worse than block 0 alone: {percent(last)} after {percent(first)} {scored}."
    average = result["average"]["accuracy"]
    better = "better than" if last > average else "worse than" if last < average else "no better than"
    return [
        lead,
        f"It is {better} the blocks' average at z = 0, which runs no chain ({percent(average)}).",
    ]


def _tiles(result: dict[str, Any], n: int) -> list[dict[str, str]]:
    """The few numbers to remember; the accuracy of the chosen decoding comes first."""
    note = f"95% interval {wilson(result['accuracy'], n)} (Wilson), n = {n:,} images"
    tiles = [{"label": "accuracy", "value": percent(result["accuracy"]), "note": note}]
    if "blocks" in result:
        decoding = "the chain" if result["decoding"] == "chain" else "average of the blocks"
        tiles[0]["label"] = f"accuracy, {decoding}"
        first = result["blocks"][0]["chain_after"]
        tiles += [
            {"label": "block 0 alone", "value": percent(first["accuracy"]), "note": f"n = {n:,} images"},
            {
                "label": "gain of the chain",
                "value": points(result["chain_gain"]),
                "note": f"over block 0, n = {n:,} images",
            },
            {
                "label": "z-free average",
                "value": percent(result["average"]["accuracy"]),
                "note": f"all blocks at z = 0, n = {n:,} images",
            },
        ]
    cross_entropy = f"{result['cross_entropy']:.4f} nats"
    return [*tiles, {"label": "cross-entropy", "value": cross_entropy, "note": f"mean over n = {n:,} images"}]


def _start_words(result: dict[str, Any]) -> str:
    start = "z = 0" if result["start"] == "zero" else "noise"
    return f"one chain from {start}, {result['num_sampling_steps']} steps"


def _unit_files(run_dir: Path, name: str) -> dict[str, Path]:
    """A file of every unit that has it, by the unit's name ("block 0", "network"), in order of their numbers."""
    paths = [path for path in run_dir.glob(f"*/{name}") if path.parent.name != "model"]
    paths.sort(key=lambda path: [int(part) if part.isdigit() else 0 for part in re.split(r"\D+", path.parent.name)])
    return {path.parent.name.replace("-", " "): path for path in paths}


def _law(model: nn.Module, result: dict[str, Any], name: str) -> Markup | None:
    return (
        figures.noise_law(name, model.config, result["num_sampling_steps"])
        if isinstance(model, BlockwiseModel)
        else None
    )


def _losses(run_dir: Path, name: str, weighted: bool) -> Markup | None:
    curves = {}
    for unit, path in _unit_files(run_dir, METRICS).items():
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        curves[unit] = [row["update"] for row in rows], [row["loss"] for row in rows]
    curves = {unit: curve for unit, curve in curves.items() if curve[0]}
    return figures.losses(name, curves, "nats, EDM-weighted" if weighted else "nats") if curves else None


def _chain(result: dict[str, Any], n: int, name: str) -> Markup:
    after = [100 * row["chain_after"]["accuracy"] for row in result["blocks"]]
    alone = [100 * row["alone"]["accuracy"] for row in result["blocks"]]
    return figures.chain(name, after, alone, 100 * result["average"]["accuracy"], n)


def _oracle(result: dict[str, Any], n: int, name: str) -> Markup:
    of = {
        key: [100 * row[key]["accuracy"] for row in result["blocks"]] for key in ("chain_after", "oracle", "scrambled")
    }
    return figures.oracle(name, of["chain_after"], of["oracle"], of["scrambled"], n)


def _block_row(row: dict[str, Any]) -> dict[str, str]:
    return {
        "block": str(row["block"]),
        "noise level": f"{row['sigma']:.4g}",
        "in the chain": percent(row["chain_after"]["accuracy"]),
        "alone, z = 0": percent(row["alone"]["accuracy"]),
        "oracle": percent(row["oracle"]["accuracy"]),
        "oracle gap, points": signed(100 * row["oracle_gap"]),
        "scrambled image": percent(row["scrambled"]["accuracy"]),
        "drop, points": signed(100 * row["image_drop"]),
    }


def _memory(run_dir: Path, config: AnyRun, name: str) -> dict[str, Any] | None:
    """Measured memory of the unit that needs most, beside what is predicted for it."""
    from diffusionblocks.planner import predict

    measured = {unit: read_json(path)["total"] for unit, path in _unit_files(run_dir, "memory.json").items()}
    if not measured:
        return None
    unit = max(measured, key=lambda key: memory_total(measured[key]))
    found, predicted = measured[unit], predict(config).total
    names = byte_unit(max(found[kind] for kind in KINDS))
    return {
        "unit": unit,
        "figure": figures.memory_pair(name, found, predicted, names),
        "peaks": [sizes["peak_total"] / names[1] for sizes in (found, predicted)],
        "bytes": names[0],
        "batch": config.batch_size,
    }


def _made(run_dir: Path) -> dict[str, Any]:
    """What trained the run, as far as its folder says, and what wrote the report."""
    made = {"This report was written by": provenance()}
    started = run_dir / PROVENANCE_FILE
    return {"The run was started by": read_json(started), **made} if started.exists() else made


def _commands(run_dir: Path, config: AnyRun, result: dict[str, Any], split: str) -> list[str]:
    """The commands that train and score this run: the recipe, and every setting that differs from it."""
    train = ["dblocks", "train", config.recipe, "--run", str(run_dir)]
    plain = resolve(config.recipe)
    if config.preset != plain.preset:
        train += ["--preset", config.preset]
        plain = resolve(config.recipe, flags={"preset": config.preset})
    for setting, value in config.model_dump().items():
        if value != getattr(plain, setting):
            text = (
                ",".join(map(str, value))
                if isinstance(value, (tuple, list))
                else str(value).lower()
                if value is None
                else str(value)
            )
            train += [f"--{setting.replace('_', '-')}", text]
    score = ["dblocks", "eval", str(run_dir), "--split", split]
    stored = {
        "start": config.start,
        "num_sampling_steps": config.num_sampling_steps or config.num_blocks,
        "chains": 1,
    }
    if "blocks" in result:
        named = {option: result[option] for option, default in stored.items() if result[option] != default}
        # Whoever names a part of the chain asks for the chain, so the decoding goes with it.
        if named or result["decoding"] != config.decoding:
            named["decoding"] = result["decoding"]
        score += [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [shlex.join(command) for command in (train, score, ["dblocks", "report", str(run_dir), "--split", split])]
