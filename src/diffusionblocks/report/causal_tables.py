"""The tables and lines of an autoregressive model's evaluation, for the terminal; the page has the same rows."""

from typing import Any

from rich.table import Table

from diffusionblocks.report.language_tables import error_words, table_of, text_lines
from diffusionblocks.report.text import number

ESTIMATES = {"exact": "exact", "bound": "upper bound"}
STARTS = {"zero": "z = 0", "noise": "noise"}


def answer_words(answer: dict[str, Any], method: str) -> str:
    """What an answer is."""
    name = answer["answer"]
    if name == "network":
        return "the network's own distribution of the next token"
    if name == "average":
        whose = "the blocks' log-probabilities at z = 0" if method == "blocks" else "the members' log-probabilities"
        return f"{whose}, averaged: an ensemble of shallow networks"
    if name == "chain":
        return f"{answer['steps']} steps from {STARTS[answer['start']]}, each moves z towards a token drawn from it"
    return f"block 0 at its largest level, its probabilities averaged over {answer['draws']} noisy starts"


def answer_rows(result: dict[str, Any]) -> list[dict[str, str]]:
    """Of every answer that a model can give its bits, and what it is."""
    return [
        {
            "answer": answer["answer"],
            "estimate": ESTIMATES[answer["estimate"]],
            "bits per character": number(answer["bits_per_character"], 3),
            "standard error": number(answer["se"], 4),
            "what it is": answer_words(answer, result["method"]),
        }
        for answer in result["answers"]
    ]


def block_rows(result: dict[str, Any]) -> list[dict[str, str]]:
    """Of every block its levels, its bits without noise, and how far they fall where it sees the token under noise."""
    return [
        {
            "block": str(row["block"]),
            "σ from": f"{row['interval'][0]:.4g}",
            "to": f"{row['interval'][1]:.4g}",
            "bits per character at z = 0": number(row["bits_per_character"], 3),
            "standard error": number(row["se"], 4),
            "at its own noise": number(row["noisy_bits_per_character"], 3),
            "given away by z": number(row["bits_per_character"] - row["noisy_bits_per_character"], 3),
        }
        for row in result["blocks"]
    ]


def causal_lines(result: dict[str, Any], memory: str) -> list[Table | str]:
    """What `dblocks eval` shows of an autoregressive model, with the line on memory; its answer's bits come last."""
    lines: list[Table | str] = [table_of("bits per character, by answer", answer_rows(result))]
    if result["blocks"]:
        lines.append(table_of("bits per character, by block", block_rows(result)))
        lines.append("at its own noise a block is given the token under noise: what is given away is not knowledge")
    what = f"{result['method']}, {result['split']} split, {result['tokens']:,} tokens"
    is_what = f"{ESTIMATES[result['estimate']]}, {result['answer']}; {result['characters']:,} characters"
    bits = f"{result['bits_per_character']:.3f} bits per character{error_words(result)} ({is_what})"
    return [*lines, *text_lines(result), memory, f"{what}: {bits}"]
