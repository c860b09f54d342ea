"""What language models leave beside their scores: generated texts, and bits per masked token over the masked share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diffusionblocks.report import figures
from diffusionblocks.report.metrics import Metric
from diffusionblocks.report.panel import Panel
from diffusionblocks.report.sampled import FirstRun, by_block, label_of, plain

FEW = 2
"""Texts of a method on the page of a comparison."""


@dataclass(frozen=True)
class Passage:
    """A generated text, with what stands below it."""

    text: str
    caption: str


def passages_of_run(result: dict[str, Any]) -> list[Passage]:
    """The texts that a run's evaluation keeps."""
    seed = first_seed(result)
    return [Passage(text, f"seed {seed}, text {k}") for k, text in enumerate(result.get("examples", []))]


def passages_of_methods(runs: list[FirstRun], metric: Metric) -> list[Passage]:
    """A few texts of every method's first seed, each with the method's score of that seed."""
    found = []
    for run in runs:
        score = f"{metric.scale * run.row['metrics'][metric.name]:.{metric.digits}f} {metric.unit}".rstrip()
        for k, text in enumerate(run.result.get("examples", [])[:FEW]):
            caption = f"{label_of(run.key)}, seed {run.row['seed']}: {metric.label} {score}; text {k}"
            found.append(Passage(text, caption))
    return found


def first_seed(result: dict[str, Any]) -> int:
    """The sampling seed of the texts that are kept."""
    seeds = result.get("sampling", {}).get("seeds", 0)
    return seeds[0] if isinstance(seeds, Sequence) else 0


def bits_of_methods(name: str, runs: list[FirstRun]) -> Panel | None:
    """Bits per masked token, a line per method at equal layer evaluations, with the edges of the blocks."""
    curves, edges = {}, list[float]()
    for run in plain(runs, "levels"):
        curves[label_of(run.key)] = _curve(run.result["levels"])
        if run.key.method == "blocks" and not edges:
            edges = _edges(run.result)
    if not curves:
        return None
    caption = (
        "On the split of the table, first seed. A line's mean is the bound in bits per token, so the area between two "
        "lines is their difference. Dotted: the edges of the blocks."
    )
    return Panel("Bits per masked token", figures.by_level(name, curves, edges, figures.MASKED_BITS), caption)


def bits_of_run(name: str, result: dict[str, Any]) -> Panel | None:
    """Bits per masked token, a line per block."""
    rows, is_cut = result.get("levels", []), len(result["blocks"]) > 1
    if not rows:
        return None
    curves = {label: _curve(own) for label, own in by_block(rows, is_cut).items()}
    of_blocks = ", each block at masked shares of its own; dotted: edges of the blocks" if is_cut else ""
    caption = (
        f"On the {result['split']} split{of_blocks}. The area below is the bound in bits per token: an upper bound, of "
        "which lower is better."
    )
    figure = figures.by_level(name, curves, _edges(result), figures.MASKED_BITS)
    return Panel("Bits per masked token", figure, caption)


def _edges(result: dict[str, Any]) -> list[float]:
    """Masked shares at the edges of the blocks, most masked first."""
    return sorted({share for row in result["blocks"] for share in row["masked"]}, reverse=True)


def _curve(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    return sorted((row["masked"], row["bits_per_masked_token"]) for row in rows)
