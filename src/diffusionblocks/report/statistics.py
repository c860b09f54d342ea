"""Statistics of compared runs: rows of the same settings, means over seeds, differences paired by seed.

A row is one trained and scored run: {"method", "preset", "num_blocks", "seed", "budget", "updates", "metrics": {...}},
with "fold" and "variant" where there are several.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from diffusionblocks.errors import InputError

Row = Mapping[str, Any]


class Key(NamedTuple):
    """What the rows of one group have in common; they differ in their seed (and fold) alone.

    The variant says in words what is unlike the other rows of the method, in training or in sampling; "" is neither.
    """

    method: str
    preset: str
    num_blocks: int
    budget: str
    updates: int
    variant: str = ""


class Difference(NamedTuple):
    """Mean of paired differences with its 95% t-interval, and the number of pairs (NaN where they do not suffice)."""

    mean: float
    low: float
    high: float
    n: int


def group(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Rows by their settings, in the order in which the settings first come."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        key = Key(*(row[name] for name in Key._fields if name != "variant"), variant=row.get("variant", ""))
        groups.setdefault(key, []).append(row)
    return groups


def values(rows: Sequence[Row], metric: str) -> list[float]:
    """A metric of every row that has it (what changes memory alone has no accuracy of its own)."""
    return [row["metrics"][metric] for row in rows if metric in row["metrics"]]


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; the deviation of fewer than two values, and the mean of none, are NaN."""
    mean = float(np.mean(values)) if len(values) else math.nan
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def paired_difference(rows_a: Sequence[Row], rows_b: Sequence[Row], metric: str) -> Difference:
    """a - b of a metric, paired by seed (and by fold where rows have one), with a 95% t-interval over the pairs.

    Rows without a partner are left out; n counts the pairs. The interval of a single pair is NaN.

    Raises:
        InputError: two rows of one side with the same seed and fold.
    """
    differences = _differences(rows_a, rows_b, metric)
    n = len(differences)
    mean, sd = mean_sd(differences)
    half = float(stats.t.ppf(0.975, n - 1)) * sd / math.sqrt(n) if n > 1 else math.nan
    return Difference(mean, mean - half, mean + half, n)


def beats(
    rows_a: Sequence[Row], rows_b: Sequence[Row], metric: str = "accuracy", lower_is_better: bool = False
) -> bool:
    """Whether a is better than b by more than two standard errors of the paired difference; never from one pair."""
    differences = _differences(*((rows_b, rows_a) if lower_is_better else (rows_a, rows_b)), metric)
    mean, sd = mean_sd(differences)
    return len(differences) > 1 and mean > 2 * sd / math.sqrt(len(differences))


def _differences(rows_a: Sequence[Row], rows_b: Sequence[Row], metric: str) -> list[float]:
    a, b = _by_pair(rows_a, metric), _by_pair(rows_b, metric)
    return [a[pair] - b[pair] for pair in a if pair in b]


def _by_pair(rows: Sequence[Row], metric: str) -> dict[tuple[Any, Any], float]:
    found: dict[tuple[Any, Any], float] = {}
    for row in rows:
        if metric not in row["metrics"]:
            continue
        pair = row["seed"], row.get("fold")
        if pair in found:
            raise InputError("seed", row["seed"], "one row per seed and fold of the same settings")
        found[pair] = row["metrics"][metric]
    return found
