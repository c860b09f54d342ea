"""What the pages of all language models share: the frame of the page, tiles, and metrics of generated text."""

import math
import shlex
from pathlib import Path
from typing import Any

from diffusionblocks.config import read_json
from diffusionblocks.errors import InputError
from diffusionblocks.report import figures
from diffusionblocks.report.language import digits_of, estimate_words, held_out_value, metric_name, sampling_words
from diffusionblocks.report.language_tables import text_rows
from diffusionblocks.report.metrics import Metric
from diffusionblocks.report.passages import passages_of_run
from diffusionblocks.report.run_parts import facts, loss_figure, made, memory_section, method_name, plan_levels
from diffusionblocks.report.sampled import noise_of

OF_TEXT = ("divergence_characters_4", "distinct_words_2", "repetition_words_4", "perplexity", "mauve")
"""The metrics of generated text that are among the first numbers."""


def read_bits(run_dir: Path, split: str, metric: Metric) -> dict[str, Any]:
    """The evaluation of a run.

    Raises:
        InputError: a file that cannot be read, or an evaluation without bits.
    """
    result = read_json(run_dir / f"eval-{split}.json")
    if metric.name not in result:
        raise InputError("run", str(run_dir), f"a {metric.label} on the {split} split", "evaluate it")
    return result


def page_of(
    run_dir: Path, prefix: str, settings: dict[str, Any], result: dict[str, Any], own: dict[str, Any], noisiest: str
) -> dict[str, Any]:
    """Everything the template needs of a run.

    Args:
        run_dir: the run folder.
        prefix: goes before the ids of its sections and figures.
        settings: of the run.
        result: its evaluation.
        own: what the family has of its own, in place of what is here.
        noisiest: what block 0 sees, in a sentence.
    """
    noise, levels, split = noise_of(settings), plan_levels(result.get("plan") or ""), result["split"]
    return {
        "prefix": prefix,
        "title": f"{settings['recipe']}: {method_name(settings)}",
        "facts": facts(settings, result, split),
        "of_blocks": noise.num_blocks > 1,
        "law": figures.noise_law(f"{prefix}law", noise, levels),
        "law_words": _law_words(noise.num_blocks > 1, len(levels), noisiest),
        "losses": loss_figure(run_dir, f"{prefix}loss", "nats"),
        "chain": None,
        "oracle": None,
        "split": split,
        "memory": memory_section(run_dir, f"{prefix}memory"),
        "grids": [],
        "passages": passages_of_run(result),
        "samples": None,
        "settings": settings,
        "commands": [shlex.join(["dblocks", name, str(run_dir), "--split", split]) for name in ("eval", "report")],
        "made": made(run_dir),
        **own,
    }


def headline(result: dict[str, Any], what: str, digits: int) -> list[str]:
    """The bits and what they are ("an upper bound on ..."), how they were estimated, and how text was generated."""
    error = "" if math.isnan(result["se"]) else f" ± {result['se']:.{digits}f}"
    windows = f"{result['windows']:,} window{'s' if result['windows'] > 1 else ''}"
    spread = f" (standard error over {windows})" if error else ""
    return [
        f"{result['bits_per_character']:.{digits}f}{error} bits per character{spread}: {what}, one training seed; "
        "lower is better.",
        estimate_words(result, result["split"]),
        *([f"Text: {sampling_words(result['sampling'])}"] if "sampling" in result else []),
    ]


def _law_words(is_cut: bool, steps: int, noisiest: str) -> str:
    words = (
        "Each block trains alone inside its own interval of levels: the thick bar, widened by the overlap to the thin "
        f"one. {noisiest}"
        if is_cut
        else "The network trains over the whole range."
    )
    return f"{words} Triangles mark the {steps} levels at which sampling runs." if steps else words


def tiles(result: dict[str, Any], estimate: str, digits: int) -> list[dict[str, str]]:
    """The few numbers to remember; `estimate` says what the bits are."""
    found = [
        {"label": label, "value": f"{result[name]:.{digits}f}", "note": f"{estimate}; lower is better"}
        for label, name in (
            ("bits per character", "bits_per_character"),
            ("bits per byte", "bits_per_byte"),
            ("bits per token", "bits_per_token"),
            ("perplexity per token", "perplexity_per_token"),
        )
    ]
    metrics = result.get("text", {}).get("metrics", {})
    for name in (name for name in OF_TEXT if metrics.get(name, {}).get("mean") is not None):
        digits, theirs = digits_of(name), held_out_value(metrics[name])
        beside = "of generated text" if theirs is None else f"held-out text: {theirs:.{digits}f}"
        found.append({"label": metric_name(name), "value": f"{metrics[name]['mean']:.{digits}f}", "note": beside})
    return found


def text_tables(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of generated text, where there is any."""
    return [_text_table(result["text"])] if result.get("text") else []


def _text_table(text: dict[str, Any]) -> dict[str, Any]:
    notes = [
        f"Every number is of {text['compared_characters']:,} characters of each sampling seed, beside as many of "
        "held-out text in pieces of the same length; it depends on how many they are. For a divergence, held-out text "
        "is one half of it against the other: the floor."
    ]
    if "judge" in text:
        notes.append(f"Judge: {text['judge']['name']} (weights {text['judge']['weights']}).")
    further = [f"{note[:1].upper()}{note[1:]}." for note in text.get("notes", [])]
    rows = text_rows(text)
    return {"name": "text", "title": "Metrics of generated text", "rows": rows, "notes": [*notes, *further]}
