"""Statistics of generated text from counts of its n-grams: divergence from held-out text, variety, repetition.

An n-gram is n characters or n words in a row; a word is what stands between white space, with its punctuation. N-grams
never cross the border of a text. Every statistic here depends on how much text there is (few samples look diverse and
far from any reference), so numbers compare only at equal sizes; `text_scores` sees to that.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from diffusionblocks.errors import InputError

Unit = Literal["characters", "words"]
UNITS = ("characters", "words")


def ngram_divergence(samples: Sequence[str], reference: Sequence[str], n: int, unit: Unit = "characters") -> float:
    """Jensen-Shannon divergence (Lin 1991) of the n-grams of the samples from those of held-out text.

    The plug-in estimate: n-grams that a side happens not to show count as impossible on it, so it is biased upward, the
    more the fewer n-grams and the larger n. It is 0 for no model at a finite size: hold it against the same divergence
    between two disjoint parts of held-out text of the samples' size.

    Args:
        samples, reference: texts of each side.
        n: length of the n-grams, in units.
        unit: what an n-gram consists of.

    Returns:
        Bits: 0 for equal distributions, 1 for disjoint ones; nan if a side has no n-gram.

    Raises:
        InputError: n below 1, or another unit.
    """
    ours, theirs = _counts(samples, n, unit), _counts(reference, n, unit)
    num_ours, num_theirs = ours.total(), theirs.total()
    if not num_ours or not num_theirs:
        return math.nan
    terms = []
    for ngram in ours.keys() | theirs.keys():
        p, q = ours[ngram] / num_ours, theirs[ngram] / num_theirs
        mean = (p + q) / 2
        terms += [share * math.log2(share / mean) / 2 for share in (p, q) if share]
    # Exact summation: a set's order differs between processes, and equal counts are to give 0.
    return min(1.0, max(0.0, math.fsum(terms)))


def distinct_n(texts: Sequence[str], n: int, unit: Unit = "words") -> float:
    """Distinct n-grams over all n-grams of all texts together (Li et al. 2016). It falls with the amount of text.

    Returns:
        0..1, 1 if no n-gram occurs twice; nan without n-grams.

    Raises:
        InputError: n below 1, or another unit.
    """
    counts = _counts(texts, n, unit)
    return len(counts) / counts.total() if counts else math.nan


def entropy(texts: Sequence[str], unit: Unit = "characters") -> float:
    """Entropy of the distribution of characters or words, in bits: the plug-in estimate.

    With K kinds in N units it is too low by about (K - 1) / (2 N ln 2) bits (Miller 1955).

    Returns:
        0 for one character only, log2(K) for K equally frequent ones; nan without text.

    Raises:
        InputError: another unit.
    """
    counts = _counts(texts, 1, unit)
    total = counts.total()
    return math.fsum(-k / total * math.log2(k / total) for k in counts.values()) if counts else math.nan


def repetition(texts: Sequence[str], n: int, unit: Unit = "words") -> float:
    """Share of the n-grams of a text that occurred before in the same text, mean over texts (Welleck et al. 2020).

    Texts without n-grams do not count. It rises with the length of texts.

    Returns:
        0..1, 0 if no text repeats an n-gram; nan without n-grams.

    Raises:
        InputError: n below 1, or another unit.
    """
    shares = [1 - distinct for text in texts if not math.isnan(distinct := distinct_n([text], n, unit))]
    return math.fsum(shares) / len(shares) if shares else math.nan


def _counts(texts: Iterable[str], n: int, unit: Unit) -> Counter[str | tuple[str, ...]]:
    if isinstance(texts, str):
        raise InputError("texts", texts[:40], "a list of texts", "put a single text into a list")
    if n < 1:
        raise InputError("n", n, "n-grams of at least 1 unit")
    if unit not in UNITS:
        raise InputError("unit", unit, f"one of {UNITS}")
    counts: Counter[str | tuple[str, ...]] = Counter()
    for text in texts:
        if unit == "characters":
            counts.update(text[k : k + n] for k in range(len(text) - n + 1))
        else:
            words = text.split()
            counts.update(tuple(words[k : k + n]) for k in range(len(words) - n + 1))
    return counts
