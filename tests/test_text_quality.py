"""Statistics of text against theory, hand-made strings and scipy."""

import math
import string

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.text_quality import distinct_n, entropy, ngram_divergence, repetition
from diffusionblocks.randomness import keyed_generator


def random_texts(*key: int | str, count: int = 20, length: int = 50, alphabet: str = "abcd ") -> list[str]:
    letters = torch.randint(0, len(alphabet), (count, length), generator=keyed_generator(*key))
    return ["".join(alphabet[k] for k in row) for row in letters.tolist()]


def test_divergence_of_two_coins_is_the_formula():
    """p = (3/4, 1/4) and q = (1/4, 3/4): H(mean) - mean of H = 1 - H(1/4)."""
    expected = 1 + 0.25 * math.log2(0.25) + 0.75 * math.log2(0.75)
    assert ngram_divergence(["aaab"], ["abbb"], 1) == pytest.approx(expected, rel=1e-12)
    assert ngram_divergence(["abbb", "abbb"], ["aaab"], 1) == pytest.approx(expected, rel=1e-12)


def test_equal_distributions_are_at_nought_and_disjoint_ones_at_one():
    texts = random_texts(0, "same")
    for n in (1, 2, 5):
        assert ngram_divergence(texts, texts[::-1], n) == 0
        assert ngram_divergence(texts * 3, texts, n, "words") == 0
        assert ngram_divergence(texts, [text.upper().replace(" ", "_") for text in texts], n) == 1
    assert ngram_divergence(["to be"], ["not to"], 2, "words") == 1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_divergence_is_the_square_of_scipy_s_distance(n):
    ours, theirs = random_texts(1, "ours"), random_texts(1, "theirs", count=7, length=90, alphabet="bcde")
    kinds = sorted({text[k : k + n] for text in ours + theirs for k in range(len(text) - n + 1)})

    def shares(texts: list[str]) -> np.ndarray:
        found = [text[k : k + n] for text in texts for k in range(len(text) - n + 1)]
        return np.array([found.count(kind) for kind in kinds]) / len(found)

    expected = jensenshannon(shares(ours), shares(theirs), base=2) ** 2
    assert ngram_divergence(ours, theirs, n) == pytest.approx(expected, rel=1e-9)
    assert ngram_divergence(theirs, ours, n) == pytest.approx(expected, rel=1e-9)


def test_divergence_of_one_distribution_falls_with_the_size_of_both_sides():
    """The bias: two halves of the same text are apart, the less the more text there is."""
    by_size = [
        ngram_divergence(random_texts(2, "a", count=count), random_texts(2, "b", count=count), 3)
        for count in (10, 100, 1000)
    ]
    assert by_size[0] > 3 * by_size[1] > 9 * by_size[2] > 0


def test_ngrams_do_not_cross_the_border_of_a_text():
    assert ngram_divergence(["ab", "ab"], ["ab"], 2) == 0
    assert ngram_divergence(["abab"], ["ab"], 2) > 0
    assert distinct_n(["a b", "a b"], 2) == 0.5
    assert math.isnan(distinct_n(["a", "b"], 2))


def test_distinct_counts_kinds_over_all():
    assert distinct_n(["to be or not to be"], 1) == 4 / 6
    assert distinct_n(["to be or not to be"], 2) == 4 / 5
    assert distinct_n(["to be", "or not", "to be"], 2) == 2 / 3
    assert distinct_n(["abcabc"], 3, "characters") == 3 / 4
    assert distinct_n(["a  b\n\tc"], 1) == 1


def test_repetition_is_the_mean_over_texts():
    assert repetition(["a a a a"], 1) == 3 / 4
    assert repetition(["a a a a", "a b c d"], 1) == 3 / 8
    assert repetition(["to be or not to be"], 2) == pytest.approx(1 / 5, rel=1e-12)
    assert repetition(["aaaaa"], 2, "characters") == 3 / 4
    # What another text said is no repetition, and a text without n-grams says nothing.
    assert repetition(["a b", "a b", "a", ""], 2) == 0


def test_entropy_of_a_uniform_alphabet_is_its_logarithm():
    assert entropy([string.ascii_lowercase[:16] * 5]) == pytest.approx(4, abs=1e-12)
    assert entropy(["ab", "cd"]) == pytest.approx(2, abs=1e-12)
    assert entropy(["the cat", "a dog"], "words") == pytest.approx(2, abs=1e-12)
    assert entropy(["aaaa"]) == 0
    assert entropy(["aaab"]) == pytest.approx(-0.25 * math.log2(0.25) - 0.75 * math.log2(0.75))


def test_without_ngrams_there_is_no_value():
    for texts in ([], [""], ["", "a"]):
        assert math.isnan(ngram_divergence(texts, ["abc"], 2))
        assert math.isnan(ngram_divergence(["abc"], texts, 2))
        assert math.isnan(distinct_n(texts, 2, "characters"))
        assert math.isnan(repetition(texts, 2, "characters"))
    assert math.isnan(entropy(["", " "], "words"))


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(InputError, match="n=0: expected n-grams of at least 1 unit"):
        distinct_n(["a"], 0)
    with pytest.raises(InputError, match="unit='bytes'"):
        entropy(["a"], "bytes")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="put a single text into a list"):
        ngram_divergence("a text", ["a"], 1)
