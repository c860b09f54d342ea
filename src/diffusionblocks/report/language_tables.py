"""The tables and lines of a language model's evaluation, for the terminal; the page has the same rows."""

import math
from typing import Any

from rich.table import Table

from diffusionblocks.report.language import digits_of, held_out_value, metric_name, sampling_words
from diffusionblocks.report.text import number

WORDS = ("metric", "answer", "estimate", "what it is")
"""Columns of words."""


def share_rows(result: dict[str, Any]) -> list[dict[str, str]]:
    """Of every block its masked shares, its part of the bound, and its bits per masked token; then of all of them."""
    blocks, total = result["blocks"], result["bits_per_character"]
    whole = {"block": "all", "masked": [0, 1], "bits_per_character": total, "se": result["se"]}
    whole["bits_per_masked_token"] = result["bits_per_token"]  # the mean over masked shares from 0 to 1
    return [
        {
            "block": str(row["block"]) if len(blocks) > 1 else "network",
            "masked from": f"{row['masked'][0]:.3f}",
            "to": f"{row['masked'][1]:.3f}",
            "bits per character": number(row["bits_per_character"], 3),
            "standard error": number(row["se"], 4),
            "share, %": number(100 * row["bits_per_character"] / total, 1),
            "bits per masked token": number(row["bits_per_masked_token"], 3),
        }
        for row in ([*blocks, whole] if len(blocks) > 1 else blocks)
    ]


def text_rows(text: dict[str, Any]) -> list[dict[str, str]]:
    """Every metric of generated text over sampling seeds, beside that of held-out text."""
    rows = []
    for name, scores in text["metrics"].items():
        values = scores["mean"], scores["sd"], held_out_value(scores)
        mean, sd, held_out = (number(math.nan if value is None else value, digits_of(name)) for value in values)
        rows.append({"metric": metric_name(name), "mean": mean, "sd over seeds": sd, "held-out text": held_out})
    return rows


def bound_line(result: dict[str, Any]) -> str:
    """The bound with its standard error, if it has one, and of how much text it is."""
    return (
        f"{result['bits_per_character']:.3f} bits per character{error_words(result)} "
        f"(an upper bound; {result['characters']:,} characters)"
    )


def error_words(result: dict[str, Any]) -> str:
    """The standard error, where there are windows to have one of."""
    return "" if math.isnan(result["se"]) else f" ± {result['se']:.3f}"


def text_lines(result: dict[str, Any]) -> list[Table | str]:
    """What `dblocks eval` shows of generated text."""
    if "text" not in result:
        return []
    lines: list[Table | str] = [table_of("generated text", text_rows(result["text"]))]
    if "sampling" in result:
        lines.append(sampling_words(result["sampling"]))
    return [*lines, *(f"note: {note}" for note in result["text"].get("notes", []))]


def language_lines(result: dict[str, Any], memory: str) -> list[Table | str]:
    """What `dblocks eval` shows of a language model, with the line on memory; the bound comes last."""
    title = f"bits per character, by block (an upper bound; {result['draws']} masks of every window)"
    lines: list[Table | str] = [table_of(title, share_rows(result))]
    what = f"{result['method']}, {result['split']} split, {result['tokens']:,} tokens"
    return [*lines, *text_lines(result), memory, f"{what}: {bound_line(result)}"]


def table_of(title: str, rows: list[dict[str, str]]) -> Table:
    """Rows as a table, words to the left and numbers to the right."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if name in WORDS else "right")
    for row in rows:
        table.add_row(*row.values())
    return table
