"""Numbers as the report writes them: with unit, and with as many digits as they have to say."""

import math
from collections.abc import Mapping

from scipy.stats import binomtest

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


def difference(d: Difference, scale: float, unit: str) -> str:
    """A paired difference with its interval and n, or why there is none."""
    if d.n == 0:
        return "no seed in common"
    mean = f"{signed(scale * d.mean)} {unit}"
    if math.isnan(d.low):
        return f"{mean} ({ONE_SEED})"
    return f"{mean} (95% interval {signed(scale * d.low)} to {signed(scale * d.high)}, n = {d.n})"


def brief_difference(d: Difference, scale: float) -> str:
    """The same for a cell of a table, whose column has the unit."""
    if d.n == 0:
        return "no seed in common"
    mean = signed(scale * d.mean)
    if math.isnan(d.low):
        return f"{mean} ({ONE_SEED})"
    return f"{mean} [{signed(scale * d.low)}, {signed(scale * d.high)}], n = {d.n}"


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


def signed(value: float) -> str:
    """Two decimals with a sign, a true minus, and no negative zero."""
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "−")
