"""Noise laws: how often each noise level is drawn in training, and how much probability mass lies below a level.

A law is all that the partition into blocks, the sampling plan and the conditioning know about noise, so Gaussian noise
and masking are two classes here and no special case elsewhere. Larger levels are noisier.
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from diffusionblocks.errors import InputError


class NoiseLaw(Protocol):
    """What the rest of the library asks of a noise law. Levels and masses are float64."""

    @property
    def cleanest(self) -> float:
        """Smallest level of the law."""
        ...

    @property
    def noisiest(self) -> float:
        """Largest level of the law."""
        ...

    def cdf(self, level: Tensor) -> Tensor:
        """Probability mass in [cleanest, level], any shape; 0 at the cleanest level and 1 at the noisiest."""
        ...

    def icdf(self, mass: Tensor) -> Tensor:
        """Level below which the given mass lies, any shape: the inverse of `cdf`."""
        ...

    def score(self, level: Tensor) -> Tensor:
        """The level on a smooth scale of about unit spread, for the features that condition a block."""
        ...

    def widen(self, lo: float, hi: float, gamma: float) -> tuple[float, float]:
        """The interval [lo, hi] with overlap gamma on both sides, clipped to the law's range."""
        ...


@dataclass(frozen=True)
class LogNormal:
    """log sigma ~ Normal(p_mean, p_std), truncated to [sigma_min, sigma_max] (Karras et al. 2022, Table 1).

    Args:
        p_mean: mean of log sigma; the paper's -1.2.
        p_std: standard deviation of log sigma; the paper's 1.2.
        sigma_min: smallest noise level, in units of the target.
        sigma_max: largest noise level.

    Raises:
        InputError: a setting out of range, or a range that carries almost no mass of the normal law.
    """

    p_mean: float = -1.2
    p_std: float = 1.2
    sigma_min: float = 0.002
    sigma_max: float = 80.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.p_mean):
            raise InputError("p_mean", self.p_mean, "a finite number")
        if not (math.isfinite(self.p_std) and self.p_std > 0):
            raise InputError("p_std", self.p_std, "a finite number above 0")
        if not (math.isfinite(self.sigma_min) and self.sigma_min > 0):
            raise InputError("sigma_min", self.sigma_min, "a finite number above 0")
        if not (math.isfinite(self.sigma_max) and self.sigma_max > self.sigma_min):
            raise InputError("sigma_max", self.sigma_max, f"a finite number above sigma_min={self.sigma_min}")
        # Below this the quantiles of the truncated law lose the digits that the edges need.
        below, above = self._tails()
        if above - below < 1e-6:
            raise InputError(
                "p_mean",
                self.p_mean,
                f"a law with mass between sigma_min={self.sigma_min} and sigma_max={self.sigma_max}",
                "move p_mean towards log(sigma) of that range, or raise p_std",
            )

    @property
    def cleanest(self) -> float:
        return self.sigma_min

    @property
    def noisiest(self) -> float:
        return self.sigma_max

    def score(self, level: Tensor) -> Tensor:
        """(log sigma - p_mean) / p_std, float64, any shape."""
        return (torch.as_tensor(level, dtype=torch.float64).log() - self.p_mean) / self.p_std

    def cdf(self, level: Tensor) -> Tensor:
        """Mass of the truncated law in [sigma_min, level], float64, any shape."""
        below, above = self._tails()
        level = torch.as_tensor(level, dtype=torch.float64)
        mass = ((torch.special.ndtr(self.score(level)) - below) / (above - below)).clamp(0.0, 1.0)
        # The ends are exact, whatever the rounding of the tails.
        return torch.where(level <= self.sigma_min, 0.0, torch.where(level >= self.sigma_max, 1.0, mass))

    def icdf(self, mass: Tensor) -> Tensor:
        """Noise level with the given mass below it, float64, any shape."""
        below, above = self._tails()
        mass = torch.as_tensor(mass, dtype=torch.float64)
        score = torch.special.ndtri(below + mass * (above - below))
        level = (self.p_mean + self.p_std * score).exp().clamp(self.sigma_min, self.sigma_max)
        return torch.where(mass <= 0.0, self.sigma_min, torch.where(mass >= 1.0, self.sigma_max, level))

    def widen(self, lo: float, hi: float, gamma: float) -> tuple[float, float]:
        """[lo/a, hi*a] with a = (hi/lo)**gamma (Appendix C), clipped to [sigma_min, sigma_max] (ours)."""
        # In logs, since a large gamma would overflow; where the range clips, its ends come back exactly.
        widening = gamma * math.log(hi / lo)
        wide_lo = self.sigma_min if math.log(lo / self.sigma_min) <= widening else lo * math.exp(-widening)
        wide_hi = self.sigma_max if math.log(self.sigma_max / hi) <= widening else hi * math.exp(widening)
        return wide_lo, wide_hi

    def _tails(self) -> tuple[float, float]:
        """Mass of the untruncated law below sigma_min and below sigma_max."""
        below, above = ((math.log(s) - self.p_mean) / self.p_std for s in (self.sigma_min, self.sigma_max))
        return 0.5 * math.erfc(-below / math.sqrt(2.0)), 0.5 * math.erfc(-above / math.sqrt(2.0))


@dataclass(frozen=True)
class Masking:
    """Masked diffusion: at level t in [0, 1] a token is masked with probability 1 - alpha(t) (Appendix B).

    A level's mass is the share of tokens that are masked, so blocks of equal mass are cut at equal decrements of alpha
    and the first of them has most masked, whatever the schedule. Levels are drawn by mass for the same reason: the
    bound on the likelihood does not depend on the schedule. The schedule says where levels lie that are even in t.

    Args:
        schedule: "linear", alpha = 1 - t (the paper's), or "cosine", alpha = 1 - sin(pi t / 2) (MD4: Shi et al. 2024).

    Raises:
        InputError: an unknown schedule.
    """

    schedule: Literal["linear", "cosine"] = "linear"

    def __post_init__(self) -> None:
        if self.schedule not in ("linear", "cosine"):
            raise InputError("schedule", self.schedule, "linear or cosine")

    @property
    def cleanest(self) -> float:
        return 0.0

    @property
    def noisiest(self) -> float:
        return 1.0

    def alpha(self, level: Tensor) -> Tensor:
        """Share of tokens that are not masked, float64, any shape."""
        return 1.0 - self.cdf(level)

    def cdf(self, level: Tensor) -> Tensor:
        """Share of tokens that are masked, float64, any shape."""
        level = torch.as_tensor(level, dtype=torch.float64).clamp(0.0, 1.0)
        return level if self.schedule == "linear" else torch.where(level >= 1.0, 1.0, (0.5 * math.pi * level).sin())

    def icdf(self, mass: Tensor) -> Tensor:
        """Level at which this share of tokens is masked, float64, any shape."""
        mass = torch.as_tensor(mass, dtype=torch.float64).clamp(0.0, 1.0)
        return mass if self.schedule == "linear" else torch.where(mass >= 1.0, 1.0, mass.asin() * (2.0 / math.pi))

    def score(self, level: Tensor) -> Tensor:
        """The masked share, which is uniform, centred and with unit spread: sqrt(12) (mass - 1/2)."""
        return math.sqrt(12.0) * (self.cdf(level) - 0.5)

    def widen(self, lo: float, hi: float, gamma: float) -> tuple[float, float]:
        """[lo, hi] with gamma of its mass added on both sides, clipped: +-gamma/B for blocks of equal mass."""
        if not gamma:  # a round trip through the masses would move the ends by a rounding error
            return lo, hi
        # In plain numbers: to plan memory, blocks are built where tensors have none.
        cosine = self.schedule == "cosine"
        mass_lo, mass_hi = (math.sin(0.5 * math.pi * level) if cosine else level for level in (lo, hi))
        widening = gamma * (mass_hi - mass_lo)
        wide = max(mass_lo - widening, 0.0), min(mass_hi + widening, 1.0)
        wide_lo, wide_hi = (math.asin(mass) * (2.0 / math.pi) if cosine else mass for mass in wide)
        return min(lo, wide_lo), max(hi, wide_hi)


@functools.lru_cache(maxsize=1024)
def masses(law: NoiseLaw, lo: float, hi: float) -> tuple[float, float]:
    """Masses below lo and hi; an interval is asked for once a batch."""
    below, above = law.cdf(torch.tensor([lo, hi], dtype=torch.float64)).tolist()
    return below, above


def draw_levels(
    law: NoiseLaw, lo: float, hi: float, n: int, generator: torch.Generator, stratified: bool = False
) -> Tensor:
    """Draw noise levels from the law restricted to [lo, hi].

    Args:
        law: the noise law.
        lo, hi: the interval, cleanest and noisiest level.
        n: number of draws.
        generator: source of randomness; its device is where the levels are made.
        stratified: one level from each of n parts of equal mass, noisiest last; each is still distributed as the law
            says when the rows are in random order.

    Returns:
        Levels (n,), float64.
    """
    mass_lo, mass_hi = masses(law, lo, hi)
    uniform = torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)
    if stratified:
        uniform = (torch.arange(n, dtype=torch.float64, device=generator.device) + uniform) / n
    return law.icdf(mass_lo + uniform * (mass_hi - mass_lo)).clamp(lo, hi)
