"""All metrics of generated text as plain data: over sampling seeds, each beside what held-out text itself gives.

The statistics depend on how much text there is and how long the texts are. So held-out text is cut to the samples'
shape: into pieces of their mean length, dealt at random to two halves, and as many characters of each as of samples.
The first half is the reference; the second stands in for samples of a perfect model, whose divergence is the floor.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.judge import Judge, generative_perplexity
from diffusionblocks.evaluation.text_mauve import FEWEST, SCALING, HiddenFeatures, mauve_over_seeds
from diffusionblocks.evaluation.text_quality import Unit, distinct_n, entropy, ngram_divergence, repetition
from diffusionblocks.randomness import keyed_generator

DIVERGENCES: tuple[tuple[Unit, int], ...] = (
    ("characters", 1),
    ("characters", 2),
    ("characters", 3),
    ("characters", 4),
    ("words", 1),
    ("words", 2),
)
DISTINCT: tuple[tuple[Unit, int], ...] = (("words", 1), ("words", 2), ("words", 3))
REPEATED: tuple[tuple[Unit, int], ...] = (("characters", 8), ("words", 4))
ENTROPIES: tuple[Unit, ...] = ("characters", "words")
ENOUGH_FOR_MAUVE = 1000
"""Texts on a side below which MAUVE is labelled: its authors advise thousands."""


def score_texts(
    samples_by_seed: Sequence[Sequence[str]],
    reference: Sequence[str],
    judge: Judge | None = None,
    features: HiddenFeatures | None = None,
    batch_size: int = 8,
) -> dict[str, Any]:
    """Score the samples of every sampling seed against held-out text.

    Args:
        samples_by_seed: generated texts, one list for each sampling seed; empty ones are counted.
        reference: held-out texts of any lengths, best twice as much as samples of a seed.
        judge: for perplexity and bits per character; None leaves them out.
        features: for MAUVE; None leaves it out.
        batch_size: texts at a time, of judge and features.

    Returns:
        Plain data for JSON, where a value that does not exist is None:
        samples, empty: how many, and how many of them without a character, for each seed.
        length: characters of a sample, with "mean" and "sd" over the seeds and "values" of each; "held_out": of a
            piece of held-out text.
        compared_characters: of each seed's samples and of either half of the held-out text, in every metric.
        metrics: of each metric "mean", "sd", "values", and what held-out text gives: "floor" for divergences (the
            second half against the first), "held_out" for the others (the first half; MAUVE: the second against the
            first). Divergences are in bits, entropies in bits, mauve, distinct and repetition 0..1. mauve also has
            "kmeans_sd", over the seeds of k-means, mean over the sampling seeds.
        judge, features: what they are; with the judge, for each seed: texts, tokens, windows, and "empty", texts
            without tokens.
        notes: what limits these numbers, in words.

    Raises:
        InputError: no seed, a seed without samples, or held-out text that does not make two pieces.
    """
    _check(samples_by_seed, reference)
    length = _mean_length(samples_by_seed)
    halves = _halves(reference, length)
    sizes = [size for texts in samples_by_seed if (size := _characters(texts))]
    # Of samples that are all empty nothing is compared, and the held-out text still shows what it would give.
    compared = min([*sizes, *map(_characters, halves)])
    held_out, stand_in = (list(_first(half, compared)) for half in halves)
    cut = [list(_first(texts, compared)) for texts in samples_by_seed]
    result: dict[str, Any] = {
        "samples": [len(texts) for texts in samples_by_seed],
        "empty": [sum(not text for text in texts) for texts in samples_by_seed],
        "length": {
            **_over_seeds([_characters(texts) / len(texts) for texts in samples_by_seed]),
            "held_out": _characters(held_out) / len(held_out),
        },
        "compared_characters": compared,
        "metrics": _statistics(cut, held_out, stand_in),
        "notes": _notes(samples_by_seed, compared),
    }
    if judge is not None:
        perplexity, result["judge"] = _judged(judge, cut, held_out, batch_size)
        result["metrics"] |= perplexity
    if features is not None:
        scores, notes = _mauve(features, cut, held_out, stand_in, batch_size)
        result["features"] = {**features.describe(), "scaling": SCALING}
        result["metrics"]["mauve"] = scores
        result["notes"] += notes
    return result


def _check(samples_by_seed: Sequence[Sequence[str]], reference: Sequence[str]) -> None:
    if not samples_by_seed:
        raise InputError("samples_by_seed", [], "samples of at least one seed", "generate some")
    for k, texts in enumerate(samples_by_seed):
        if isinstance(texts, str) or not texts:
            raise InputError(
                f"samples_by_seed[{k}]", texts[:40], "a list of texts", "generate at least one of each seed"
            )
    if isinstance(reference, str) or not any(reference):
        raise InputError("reference", reference[:40], "a list of texts, not all empty", "give held-out text")


def _mean_length(samples_by_seed: Sequence[Sequence[str]]) -> int | None:
    """Characters of a sample that is not empty, rounded; None without any."""
    lengths = [len(text) for texts in samples_by_seed for text in texts if text]
    return round(float(np.mean(lengths))) if lengths else None


def _halves(reference: Sequence[str], length: int | None) -> tuple[list[str], list[str]]:
    """Two disjoint halves of held-out text, in pieces of at most `length` characters; the same ones at every call.

    Shuffled, since what is compared are the first pieces of each half: they are to be from everywhere, not one chapter.
    """
    pieces = [piece for text in reference if text for piece in _pieces(text, length or max(1, len(text) // 2))]
    if len(pieces) < 2:
        expected = f"held-out text of at least two samples' length (2 x {length} characters)"
        raise InputError("reference", f"{_characters(reference)} characters", expected, "give more held-out text")
    order = torch.randperm(len(pieces), generator=keyed_generator(0, "held-out halves")).tolist()
    return [pieces[k] for k in order[0::2]], [pieces[k] for k in order[1::2]]


def _pieces(text: str, length: int) -> Iterator[str]:
    """A text cut to `length`; its end is left out if it is shorter, unless the whole text is."""
    for start in range(0, max(1, len(text) - length + 1), length):
        yield text[start : start + length]


def _first(texts: Sequence[str], characters: int) -> Iterator[str]:
    """Texts, without the empty ones, until there are that many characters; the last one is cut."""
    for text in texts:
        if text and characters > 0:
            yield text[:characters]
            characters -= len(text)


def _characters(texts: Sequence[str]) -> int:
    return sum(map(len, texts))


def _statistics(cut: list[list[str]], held_out: list[str], stand_in: list[str]) -> dict[str, Any]:
    def beside(function: Callable[..., float], *options: Any) -> dict[str, Any]:
        values = [function(texts, *options) for texts in cut]
        return {**_over_seeds(values), "held_out": _number(function(held_out, *options))}

    metrics = {}
    for unit, n in DIVERGENCES:
        values = [ngram_divergence(texts, held_out, n, unit) for texts in cut]
        floor = _number(ngram_divergence(stand_in, held_out, n, unit))
        metrics[f"divergence_{unit}_{n}"] = {**_over_seeds(values), "floor": floor}
    for unit, n in DISTINCT:
        metrics[f"distinct_{unit}_{n}"] = beside(distinct_n, n, unit)
    for unit in ENTROPIES:
        metrics[f"entropy_{unit}"] = beside(entropy, unit)
    for unit, n in REPEATED:
        metrics[f"repetition_{unit}_{n}"] = beside(repetition, n, unit)
    return metrics


def _judged(
    judge: Judge, cut: list[list[str]], held_out: list[str], batch_size: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(perplexity and bits per character, what they are of)."""
    rows = [generative_perplexity(judge, texts, batch_size) for texts in cut]
    theirs = generative_perplexity(judge, held_out, batch_size)
    metrics = {
        name: {**_over_seeds([row[name] for row in rows]), "held_out": theirs[name]}
        for name in ("perplexity", "bits_per_character")
    }
    counts = {name: [row[name] for row in rows] for name in ("texts", "tokens", "empty", "windows")}
    return metrics, {**judge.describe(), **counts, "first_token": theirs["first_token"]}


def _mauve(
    features: HiddenFeatures, cut: list[list[str]], held_out: list[str], stand_in: list[str], batch_size: int
) -> tuple[dict[str, Any], list[str]]:
    """(MAUVE, notes on it); of texts with tokens only."""
    *ours, held_out, stand_in = (
        [text for text in texts if features.judge.tokens(text)] for texts in (*cut, held_out, stand_in)
    )
    fewest = min(map(len, (*ours, held_out, stand_in)))
    if fewest < FEWEST:
        nothing = {**_over_seeds([None] * len(ours)), "kmeans_sd": None, "held_out": None}
        return nothing, [f"mauve: not measured, {fewest} texts on a side and at least {FEWEST} are needed"]
    theirs = features(held_out, batch_size)
    scores = [mauve_over_seeds(theirs, features(texts, batch_size)) for texts in ours]
    notes = []
    if fewest < ENOUGH_FOR_MAUVE:
        notes = [f"mauve: {fewest} texts on a side; below {ENOUGH_FOR_MAUVE} only large differences say something"]
    return {
        **_over_seeds([score["mean"] for score in scores]),
        "kmeans_sd": float(np.mean([score["sd"] for score in scores])),
        "held_out": mauve_over_seeds(theirs, features(stand_in, batch_size))["mean"],
    }, notes


def _notes(samples_by_seed: Sequence[Sequence[str]], compared: int) -> list[str]:
    notes = []
    sizes = [_characters(texts) for texts in samples_by_seed]
    empty = sum(not text for texts in samples_by_seed for text in texts)
    if empty:
        notes.append(f"{empty} of {sum(map(len, samples_by_seed))} samples are empty; the metrics are of the others")
    if max(sizes) > compared:
        notes.append(f"metrics are of the first {compared} characters of each seed, of {min(sizes)} to {max(sizes)}")
    if len(samples_by_seed) < 2:
        notes.append("one sampling seed: no spread")
    return notes


def _over_seeds(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds that have a value, and each seed's value."""
    there = [value for value in map(_number, values) if value is not None]
    return {
        "mean": float(np.mean(there)) if there else None,
        "sd": float(np.std(there, ddof=1)) if len(there) > 1 else None,
        "values": [_number(value) for value in values],
    }


def _number(value: float | None) -> float | None:
    """JSON has no nan."""
    return None if value is None or math.isnan(value) else value
