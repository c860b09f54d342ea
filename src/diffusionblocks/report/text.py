"""Numbers as the report writes them: with unit, and with as many digits as they have to say."""

import math
from collections.abc import Mapping

from scipy.stats import binomtest

from diffusionblocks.report.metrics import Metric
from diffusionblocks.report.statistics import Difference

ONE_SEED = "one seed: no interval"


def percent(share: float) -> str:
    """0.98056 -> 98.06%."""
    return f"{100 * share:.2f}%"


def points(difference: float) -> str:
    """0.0278 -> +2.78 points (of a percentage)."""
    return f"{signed(100 * difference)} points"


def wilson(share: float, n: int) -> str:
    """The 95% Wilson interval of a share of n samples, which is how far another sample of this size may lie."""
    interval = binomtest(round(share * n), n).proportion_ci(method="wilson")
    return f"{100 * interval.low:.1f} to {100 * interval.high:.1f}%"


def difference(d: Difference, metric: Metric) -> str:
    """A paired difference with its interval and n, or why there is none."""
    if d.n == 0:
        return "no seed in common"
    mean, low, high = (signed(metric.scale * value, metric.digits) for value in (d.mean, d.low, d.high))
    mean = f"{mean} {metric.difference_unit}".rstrip()
    return f"{mean} ({ONE_SEED})" if math.isnan(d.low) else f"{mean} (95% interval {low} to {high}, n = {d.n})"


def brief_difference(d: Difference, metric: Metric) -> str:
    """The same for a cell of a table, whose column has the unit."""
    if d.n == 0:
        return "no seed in common"
    mean, low, high = (signed(metric.scale * value, metric.digits) for value in (d.mean, d.low, d.high))
    return f"{mean} ({ONE_SEED})" if math.isnan(d.low) else f"{mean} [{low}, {high}], n = {d.n}"


def measured(mean: float, sd: float, n: int, runs: str, metric: Metric) -> str:
    """A mean with its unit and its spread; `runs` says in words what the n values are."""
    value = f"{metric.scale * mean:.{metric.digits}f}".replace("-", "−")
    value += metric.unit if metric.unit == "%" else f" {metric.unit}".rstrip()
    return f"{value} ({_spread(metric.scale * sd, metric.digits, metric.difference_unit, n, runs)})"


def points_with_spread(gain: float, sd: float, n: int, runs: str) -> str:
    """A mean gain of shares in points, with its spread."""
    value = f"{100 * gain:+.2f}".replace("-", "−")
    return f"{value} points ({_spread(100 * sd, 2, 'points', n, runs)})"


def _spread(sd: float, digits: int, unit: str, n: int, runs: str) -> str:
    return ONE_SEED if n < 2 else f"{f'sd {sd:.{digits}f} {unit}'.rstrip()}, n = {runs}"


def scored(value: str, metric: Metric) -> str:
    """A score in a sentence: with what it is, where that is not plain."""
    return f"a bound of {value}" if metric.is_bound else named(value, metric)


def named(value: str, metric: Metric) -> str:
    """With the metric's label before a value whose unit does not tell what it is."""
    return value if metric.unit else f"{metric.label} {value}"


def number(value: float, digits: int) -> str:
    """With so many decimals; nothing for NaN."""
    return "" if math.isnan(value) else f"{value:,.{digits}f}".replace("-", "−")


def byte_unit(largest: float) -> tuple[str, int]:
    """The unit in which a number of bytes is best read: (name, bytes)."""
    for name, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if largest >= size:
            return name, size
    return "bytes", 1


def memory_total(sizes: Mapping[str, float]) -> float:
    """Sum of the kinds; the peak is not a kind, and less than this sum."""
    return sum(size for kind, size in sizes.items() if kind != "peak_total")


def signed(value: float, digits: int = 2) -> str:
    """So many decimals with a sign, a true minus, and no negative zero."""
    text = f"{value:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")
