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


def bits_of_methods(name: str, runs: list[FirstRun]) -> list[Panel]:
    """Bits per masked token, a line per method at equal layer evaluations, with the edges of the blocks.

    And the same minus end to end's, which is asked at the same masked shares: lines lie close together beside what they
    have in common.
    """
    found = plain(runs, "levels")
    if not found:
        return []
    curves = {label_of(run.key): _curve(run.result["levels"]) for run in found}
    edges = next((_edges(run.result) for run in found if run.key.method == "blocks"), [])
    caption = (
        "On the split of the table, first seed. The area below a line is the method's bound in bits per token. Dotted: "
        "the edges of the blocks."
    )
    panels = [Panel("Bits per masked token", figures.by_level(name, curves, edges, figures.MASKED_BITS), caption)]
    whole = dict(next((curves[label_of(run.key)] for run in found if run.key.method == "end-to-end"), []))
    beside = {
        label: [(share, bits - whole[share]) for share, bits in curve]
        for label, curve in curves.items()
        if whole.keys() == {share for share, _ in curve} and whole != dict(curve)
    }
    if beside:
        caption = "The same, minus end to end's bits at the same masked share; below 0 is better than end to end."
        figure = figures.by_level(f"{name}-beside", beside, edges, figures.BESIDE_WHOLE)
        panels.append(Panel("Bits per masked token, minus end to end", figure, caption))
    return panels


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
    # Rounded, so that the shares of blocks and of the whole network are the same where they differ by rounding alone.
    return sorted((round(row["masked"], 9), row["bits_per_masked_token"]) for row in rows)
