"""The cut: which layers and which range of noise levels each block gets. Block 0: first layers, noisiest range."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from diffusionblocks.errors import InputError
from diffusionblocks.noise import NoiseLaw

Cut = Literal["equal-mass", "uniform-linear", "uniform-log"]


@dataclass(frozen=True)
class Interval:
    """A closed range of noise levels, lo (cleanest) to hi (noisiest)."""

    lo: float
    hi: float


def noise_edges(law: NoiseLaw, num_blocks: int, cut: Cut = "equal-mass") -> tuple[float, ...]:
    """Edges of the blocks' noise ranges, from the noisiest level down to the cleanest.

    Equal mass (Section 3.3): edge_k = icdf(1 - k/B) of the truncated law. Uniform, for ablations: linear in sigma
    (Section 3.3) or linear in log sigma (Appendix E.6).

    Args:
        law: the noise law.
        num_blocks: B >= 1.
        cut: how the range is cut.

    Returns:
        B + 1 levels, strictly decreasing; the outer two are exactly the law's noisiest and cleanest level.

    Raises:
        InputError: fewer than 1 block, an unknown cut, or edges that are not finite and strictly decreasing.
    """
    check_count("num_blocks", num_blocks)
    hi, lo = law.noisiest, law.cleanest
    share = torch.arange(num_blocks + 1, dtype=torch.float64) / num_blocks
    if cut == "equal-mass":
        inner = law.icdf(1.0 - share)
    elif cut == "uniform-linear":
        inner = hi + share * (lo - hi)
    elif cut == "uniform-log":
        if lo <= 0:
            raise InputError("cut", cut, "another one: the law's cleanest level is 0", "take uniform-linear")
        inner = (math.log(hi) + share * (math.log(lo) - math.log(hi))).exp()
    else:
        raise InputError("cut", cut, "one of equal-mass, uniform-linear, uniform-log")
    edges = (hi, *inner[1:-1].tolist(), lo)
    if not all(math.isfinite(a) and a > b for a, b in itertools.pairwise(edges)):
        raise InputError("num_blocks", num_blocks, "noise edges that strictly decrease", "take fewer")
    return edges


def noise_intervals(edges: Sequence[float]) -> tuple[Interval, ...]:
    """The B core intervals between B + 1 decreasing edges; block 0 has the noisiest."""
    return tuple(Interval(lo=lo, hi=hi) for hi, lo in itertools.pairwise(edges))


def training_interval(law: NoiseLaw, core: Interval, gamma: float) -> Interval:
    """The interval a block trains on: its core widened by the overlap gamma (Appendix C; 0.05, for text 0.1).

    Raises:
        InputError: gamma below 0 or not finite.
    """
    if not (math.isfinite(gamma) and gamma >= 0):
        raise InputError("gamma", gamma, "a finite number of at least 0")
    return Interval(*law.widen(core.lo, core.hi, gamma))


def split_layers(num_layers: int, num_blocks: int, split: Sequence[int] | None = None) -> tuple[range, ...]:
    """Which consecutive layers each block gets; every layer belongs to exactly one block.

    Without an explicit split the first blocks take the remainder: 10 layers in 4 blocks are 3, 3, 2, 2.

    Args:
        num_layers: L >= 1.
        num_blocks: B, 1 <= B <= L.
        split: number of layers of each block, or None.

    Returns:
        B ranges of layer indices.

    Raises:
        InputError: counts below 1, more blocks than layers, or a split that does not place every layer once.
    """
    check_count("num_layers", num_layers)
    check_count("num_blocks", num_blocks)
    if num_blocks > num_layers:
        raise InputError("num_blocks", num_blocks, f"at most the number of layers, {num_layers}", "take fewer blocks")
    if split is None:
        base, rest = divmod(num_layers, num_blocks)
        split = [base + (k < rest) for k in range(num_blocks)]
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in split)
    if not whole or len(split) != num_blocks or sum(split) != num_layers:
        raise InputError(
            "layer_split",
            list(split),
            f"{num_blocks} counts of at least 1 that sum to {num_layers} layers",
            "give one number of layers per block",
        )
    ends = list(itertools.accumulate(split))
    return tuple(range(end - count, end) for end, count in zip(ends, split, strict=True))


def check_count(setting: str, value: int) -> None:
    """Raise InputError unless value is a whole number of at least 1 (True and 2.0 are not)."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(setting, value, "a whole number of at least 1")
