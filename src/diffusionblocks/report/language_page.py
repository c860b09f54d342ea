"""What the report of a run of a masked language model says; it is made from the files of the run folder alone."""

import math
import shlex
from pathlib import Path
from typing import Any

from diffusionblocks.config import read_json
from diffusionblocks.errors import InputError
from diffusionblocks.report import figures
from diffusionblocks.report.language import digits_of, estimate_words, held_out_value, metric_name, sampling_words
from diffusionblocks.report.language_tables import share_rows, text_rows
from diffusionblocks.report.metrics import METRICS
from diffusionblocks.report.passages import bits_of_run, passages_of_run
from diffusionblocks.report.run_parts import (
    facts,
    loss_figure,
    made,
    memory_section,
    method_name,
    plan_levels,
    settings_of,
)
from diffusionblocks.report.sampled import noise_of

BOUND = METRICS["masked-lm"]
OF_TEXT = ("divergence_characters_4", "distinct_words_2", "repetition_words_4", "perplexity", "mauve")
"""The metrics of generated text that are among the first numbers."""


def language_page(run_dir: Path, split: str, prefix: str = "") -> dict[str, Any]:
    """Everything the template needs of a run that has been evaluated on the split.

    Args:
        run_dir: the run folder, with eval-SPLIT.json.
        split: the split whose likelihood was bounded.
        prefix: goes before the ids of its sections and figures, where a page has more than this run.

    Raises:
        InputError: a file that cannot be read, or an evaluation without the bound.
    """
    settings, result = settings_of(run_dir), read_json(run_dir / f"eval-{split}.json")
    if BOUND.name not in result:
        raise InputError("run", str(run_dir), f"a {BOUND.label} on the {split} split", "evaluate it")
    noise, levels = noise_of(settings), plan_levels(result.get("plan") or "")
    return {
        "prefix": prefix,
        "title": f"{settings['recipe']}: {method_name(settings)}",
        "facts": facts(settings, result, split),
        "headline": _headline(result, split),
        "tiles": _tiles(result),
        "of_blocks": noise.num_blocks > 1,
        "law": figures.noise_law(f"{prefix}law", noise, levels),
        "law_words": _law_words(noise.num_blocks > 1, len(levels)),
        "losses": loss_figure(run_dir, f"{prefix}loss", "nats"),
        "by_level": bits_of_run(f"{prefix}levels", result),
        "chain": None,
        "oracle": None,
        "split": split,
        "memory": memory_section(run_dir, f"{prefix}memory"),
        "grids": [],
        "tables": _tables(result),
        "passages": passages_of_run(result),
        "samples": None,
        "settings": settings,
        "commands": [shlex.join(["dblocks", name, str(run_dir), "--split", split]) for name in ("eval", "report")],
        "made": made(run_dir),
    }


def _headline(result: dict[str, Any], split: str) -> list[str]:
    """The bound, how it was estimated, and how text was generated."""
    error = "" if math.isnan(result["se"]) else f" ± {result['se']:.{BOUND.digits}f}"
    windows = f"{result['windows']:,} window{'s' if result['windows'] > 1 else ''}"
    spread = f" (standard error over {windows})" if error else ""
    return [
        f"{result['bits_per_character']:.{BOUND.digits}f}{error} bits per character{spread}: an upper bound on the "
        f"negative log-likelihood of {result['tokens']:,} {split} tokens, one training seed; lower is better.",
        estimate_words(result, split),
        *([f"Text: {sampling_words(result['sampling'])}"] if "sampling" in result else []),
    ]


def _law_words(is_cut: bool, steps: int) -> str:
    words = (
        "Each block trains alone inside its own interval of levels: the thick bar, widened by the overlap to the thin "
        "one. Block 0 sees most tokens masked."
        if is_cut
        else "The network trains over the whole range."
    )
    return f"{words} Triangles mark the {steps} levels at which sampling runs." if steps else words


def _tiles(result: dict[str, Any]) -> list[dict[str, str]]:
    """The few numbers to remember."""
    note = "upper bound; lower is better"
    tiles = [
        {"label": label, "value": f"{result[name]:.{BOUND.digits}f}", "note": note}
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
        tiles.append({"label": metric_name(name), "value": f"{metrics[name]['mean']:.{digits}f}", "note": beside})
    return tiles


def _tables(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks' shares of the bound, and the metrics of generated text."""
    shares = {
        "name": "shares",
        "title": "Bits per character by block" if len(result["blocks"]) > 1 else "Bits per character",
        "rows": share_rows(result),
        "notes": [
            "Upper bounds. Bits per masked token times the width of a block's range is its share of the bits per token."
        ],
    }
    return [shares, _text_table(result["text"])] if result.get("text") else [shares]


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
