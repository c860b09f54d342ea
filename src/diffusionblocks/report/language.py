"""What the reports of language models say in words: of bits, of sampling, of the metrics of generated text."""

import re
from collections.abc import Mapping
from typing import Any

NAMES = {
    "divergence": ("divergence of {} from held-out text, bits", 4),
    "distinct": ("share of distinct {}", 4),
    "entropy": ("entropy of {}, bits", 4),
    "repetition": ("share of {} repeated within a text", 4),
    "perplexity": ("perplexity for the judge", 2),
    "bits_per_character": ("bits per character for the judge", 3),
    "mauve": ("MAUVE", 4),
}
"""Kinds of metrics of text in words, and their decimals."""

DECODINGS = {
    "network": "the network's answer",
    "average": "the average of log-probabilities",
    "chain": "a chain of {num_sampling_steps} steps (start: {start}; bridge: {bridge})",
}
"""What autoregressive models draw a token from."""


def metric_name(metric: str) -> str:
    """A metric of generated text in words: "distinct_words_2" is the share of distinct 2-grams of words."""
    found = re.fullmatch(r"([a-z]+)_(characters|words)(?:_(\d+))?", metric)
    if found is None or found[1] not in NAMES:
        return NAMES[metric][0] if metric in NAMES else metric.replace("_", " ")
    what = f"{found[3]}-grams of {found[2]}" if found[3] else found[2]
    return NAMES[found[1]][0].format(what)


def digits_of(metric: str) -> int:
    """Decimals of a metric of generated text."""
    kind = metric if metric in NAMES else metric.partition("_")[0]
    return NAMES[kind][1] if kind in NAMES else 4


def held_out_value(scores: Mapping[str, Any]) -> float | None:
    """What held-out text itself gives: its own value, or for a divergence that of its halves from each other."""
    return scores.get("held_out", scores.get("floor"))


def estimate_words(of: Mapping[str, Any], split: str) -> str:
    """How bits were estimated, and of what."""
    what = f"{of['characters']:,} characters, tokenizer: {of['tokenizer']}; seed {of['seed']}"
    if "draws" not in of:
        return (
            f"Every window of the {split} split is read by itself, so that a token is told from what is before it in "
            f"its window alone ({what} of the noise)."
        )
    return f"The bound is an estimate from {of['draws']} masks of every window of the {split} split ({what})."


def sampling_words(sampling: Mapping[str, Any], of_many: bool = False) -> str:
    """How text was generated, and how much; `of_many`: by several methods, each with its own answer."""
    seeds = sampling["seeds"] if isinstance(sampling["seeds"], int) else len(sampling["seeds"])
    each = f"of each of {seeds} sampling seeds" if seeds > 1 else "of one sampling seed"
    how = f"generated with {sampling['sampler']} in {sampling.get('num_sampling_steps')} steps"
    if sampling["sampler"] in DECODINGS:
        answer = "each method's own answer" if of_many else DECODINGS[sampling["sampler"]].format(**sampling)
        how = f"generated token by token from {answer}"
    top = f" and top-p {sampling['top_p']:g}" if sampling.get("top_p", 1) < 1 else ""
    return f"{sampling['samples']:,} texts {each}, {how} at temperature {sampling['temperature']:g}{top}."


def reference_words(reference: Mapping[str, Any]) -> list[str]:
    """What a comparison's columns of text are exactly, and what held-out text itself has.

    Args:
        reference: "floor", and in "of" the metric of text that each column is, by the column's name in the rows.
    """
    columns = {"ngram_divergence": "n-gram divergence", "distinct_2": "distinct-2"}
    found = [
        f"{columns.get(name, name.replace('_', ' '))}: {metric_name(metric)}"
        for name, metric in reference.get("of", {}).items()
    ]
    sentences = [f"Columns of text: {'; '.join(found)}."] if found else []
    floor = reference.get("floor")
    if floor is not None:
        sentences.append(f"Two halves of held-out text have an n-gram divergence of {floor:.4f} bits: the floor.")
    return sentences
