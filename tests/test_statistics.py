"""Statistics over seeds against SciPy's tests, and the pairs that they rest on."""

import math

import numpy as np
import pytest
from report_folders import ROWS, row
from scipy import stats

from diffusionblocks.errors import InputError
from diffusionblocks.report.statistics import Key, beats, group, mean_sd, paired_difference


def rows(values, method="blocks", **changes):
    return [row(method, seed, value, **changes) for seed, value in enumerate(values)]


@pytest.mark.parametrize("n", [2, 3, 10])
def test_a_paired_difference_is_that_of_the_paired_t_test(n):
    a, b = np.random.default_rng(n).normal(size=(2, n))
    found = paired_difference(rows(a), list(reversed(rows(b))), "accuracy")
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert found == pytest.approx((np.mean(a) - np.mean(b), interval.low, interval.high, n))


def test_pairs_are_made_by_seed_and_fold_and_lone_rows_are_left_out():
    a = [row("blocks", 0, 0.5, fold=0), row("blocks", 0, 0.9, fold=1), row("blocks", 7, 0.1, fold=0)]
    b = [row("shallow", 0, 0.8, fold=1), row("shallow", 0, 0.3, fold=0), row("shallow", 3, 0.0, fold=0)]
    found = paired_difference(a, b, "accuracy")
    assert found.n == 2
    assert found.mean == pytest.approx((0.2 + 0.1) / 2)
    with pytest.raises(InputError, match="seed=0"):
        paired_difference(rows([0.5]) * 2, rows([0.4]), "accuracy")


def test_one_seed_has_no_interval_and_none_has_no_difference():
    found = paired_difference(rows([0.75]), rows([0.5]), "accuracy")
    assert (found.mean, found.n) == (0.25, 1)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert paired_difference(ROWS[:3], [row("checkpointing", 0, 0.0, metrics={})], "accuracy").n == 0
    nothing = paired_difference(rows([0.75]), [], "accuracy")
    assert nothing.n == 0
    assert math.isnan(nothing.mean)


def test_mean_and_deviation_of_a_sample():
    values = [0.2, 0.5, 0.9, 0.1]
    expected = stats.describe(values)
    assert mean_sd(values) == pytest.approx((expected.mean, math.sqrt(expected.variance)))
    assert mean_sd([0.3])[0] == 0.3
    assert math.isnan(mean_sd([0.3])[1])
    assert math.isnan(mean_sd([])[0])


def test_beats_means_two_standard_errors():
    differences = np.array([0.1, 0.2, 0.6])
    ratio = float(np.mean(differences) / stats.sem(differences))
    assert ratio < 2 < ratio * 1.1 * np.sqrt(2)
    assert not beats(rows(0.5 + differences), rows([0.5] * 3))
    # The same spread over a mean that is 2.1 standard errors from 0.
    moved = differences + (2.1 - ratio) * stats.sem(differences)
    assert beats(rows(0.5 + moved), rows([0.5] * 3))
    assert not beats(rows([0.5] * 3), rows(0.5 + moved))
    assert not beats(rows([0.9]), rows([0.1]))


def test_rows_of_the_same_settings_are_one_group_in_the_order_they_come():
    groups = group(ROWS)
    assert [(key.method, key.updates, len(rows)) for key, rows in groups.items()] == [
        ("blocks", 3, 3),
        ("end-to-end", 3, 3),
        ("shallow", 3, 3),
        ("shallow", 6, 3),
        ("checkpointing", 3, 1),
    ]
    assert next(iter(groups)) == Key("blocks", "default", 2, "layer-evaluations", 3)
