"""What the report of a run of classifiers says: its headline, its figures, its samples and how to do it again."""

import shlex
from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import nn

from diffusionblocks.block import plan_of
from diffusionblocks.config import read_json
from diffusionblocks.data.images import ImageSet
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.recipes import resolve
from diffusionblocks.report import figures
from diffusionblocks.report.run_parts import facts, loss_figure, made, memory_section, method_name
from diffusionblocks.report.samples import FEW, choose_samples
from diffusionblocks.report.text import percent, points, signed, wilson
from diffusionblocks.run_config import VitRun
from diffusionblocks.training.run import load_config, load_trained

LAW_WORDS = (
    "Each block trains alone inside its own interval of noise levels: the thick bar, widened by the overlap to the "
    "thin one. Triangles mark the levels at which the chain runs."
)


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
    assert isinstance(config, VitRun)
    model, _ = load_trained(run_dir, config)
    weighted = isinstance(model, BlockwiseModel) and config.weight != "none"
    is_blocks, n, settings = isinstance(model, BlockwiseModel), result["images"], config.model_dump()
    return {
        "prefix": prefix,
        "title": f"{config.recipe}: {method_name(settings)}",
        "facts": facts(settings, result, split),
        "headline": _headline(result, n, split),
        "tiles": _tiles(result, n),
        "of_blocks": is_blocks,
        "law": _law(model, result, f"{prefix}law"),
        "law_words": f"{LAW_WORDS} Plan: {result.get('plan')}.",
        "losses": loss_figure(run_dir, f"{prefix}loss", "nats, EDM-weighted" if weighted else "nats"),
        "by_level": None,
        "chain": _chain(result, n, f"{prefix}chain") if is_blocks else None,
        "oracle": _oracle(result, n, f"{prefix}oracle") if is_blocks else None,
        "blocks": [_block_row(row) for row in result.get("blocks", [])],
        "n": n,
        "split": split,
        "memory": memory_section(run_dir, f"{prefix}memory"),
        "grids": [],
        "tables": [],
        "passages": [],
        "samples": choose_samples(model.to(device), images, result),
        "few": FEW,
        "size": config.image_size,
        "channels": "grey" if config.num_channels == 1 else "RGB",
        "start": _start_words(result) if is_blocks else "",
        "settings": settings,
        "commands": _commands(run_dir, config, result, split),
        "made": made(run_dir),
    }


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


def _law(model: nn.Module, result: dict[str, Any], name: str) -> Markup | None:
    if not isinstance(model, BlockwiseModel):
        return None
    steps = plan_of(model.config, result["num_sampling_steps"]).steps
    return figures.noise_law(name, model.config, [step.sigma for step in steps])


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


def _commands(run_dir: Path, config: Any, result: dict[str, Any], split: str) -> list[str]:
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
