"""Sampling: a plan of noise levels, each with the block that runs it, and the steps that follow it.

A denoiser is any callable D(z, sigma) -> denoised with z and denoised (B, ...) and sigma (B,) in float64; samplers
know nothing of networks. The block of a step is written in the plan and never looked up from a noise level.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from diffusionblocks.errors import InputError
from diffusionblocks.noise import NoiseLaw
from diffusionblocks.partition import check_count

Denoiser = Callable[[Tensor, Tensor], Tensor]
Spacing = Literal["karras", "log", "mass", "linear"]
Allotment = Literal["even", "range"]
Start = Literal["zero", "noise"]


@dataclass(frozen=True)
class PlanStep:
    """One step: `block` denoises at `sigma`, then the sampler moves to `sigma_next` (0 ends the chain)."""

    sigma: float
    sigma_next: float
    block: int


@dataclass(frozen=True)
class SamplingPlan:
    """The steps of a chain, in order.

    Raises:
        InputError: no step, or noise levels that are not finite and strictly decreasing.
    """

    steps: tuple[PlanStep, ...]

    def __post_init__(self) -> None:
        levels = [step.sigma for step in self.steps] + [step.sigma_next for step in self.steps[-1:]]
        follows = all(a.sigma_next == b.sigma for a, b in itertools.pairwise(self.steps))
        decreasing = all(math.isfinite(a) and a > b for a, b in itertools.pairwise(levels))
        if not self.steps or not follows or not decreasing or levels[-1] < 0:
            raise InputError("steps", levels, "finite noise levels that strictly decrease and join")

    @classmethod
    def build(
        cls,
        law: NoiseLaw,
        edges: Sequence[float],
        num_sampling_steps: int,
        spacing: Spacing = "karras",
        allotment: Allotment = "even",
    ) -> "SamplingPlan":
        """Allot the steps to the blocks first, then place them inside each block's interval.

        Even: every block gets num_sampling_steps // B steps and the first blocks one of the remainder each. By range:
        as many as the spacing's grid over the whole range has in its interval, and at least one. A block's first
        step is at its upper edge and its last one moves on to its lower edge, where the next block starts; the last
        step of the plan moves to 0 instead of the cleanest level, so the chain ends at what that block denoised.

        Args:
            law: the noise law (used by spacing "mass").
            edges: B + 1 decreasing edges of the blocks.
            num_sampling_steps: n >= B steps, so n calls of a network under Euler.
            spacing: inside a block: "karras" (rho = 7, Karras et al. 2022, Eq. 5), "log", "mass" (equal), "linear".
            allotment: "even" or "range".

        Raises:
            InputError: fewer steps than blocks, or an unknown spacing or allotment.
        """
        num_blocks = len(edges) - 1
        check_count("num_sampling_steps", num_sampling_steps)
        if num_sampling_steps < num_blocks:
            raise InputError(
                "num_sampling_steps",
                num_sampling_steps,
                f"at least one step for each of the {num_blocks} blocks",
                f"take {num_blocks} or more",
            )
        placed: list[tuple[float, int]] = []
        for block, count in enumerate(_allot(law, edges, num_sampling_steps, spacing, allotment)):
            placed += [(sigma, block) for sigma in _place(law, edges[block], edges[block + 1], count, spacing)]
        levels = [sigma for sigma, _ in placed[1:]] + [0.0]
        return cls(tuple(PlanStep(s, after, b) for (s, b), after in zip(placed, levels, strict=True)))

    def blocks(self) -> tuple[int, ...]:
        """The block of each step."""
        return tuple(step.block for step in self.steps)

    def last_steps(self) -> dict[int, int]:
        """For each block the index of its last step in the plan."""
        return {step.block: index for index, step in enumerate(self.steps)}

    def first_sigmas(self) -> dict[int, float]:
        """For each block the noise level of its first step."""
        return {step.block: step.sigma for step in reversed(self.steps)}

    def describe(self) -> str:
        """The grid in one line, with the blocks and the last step."""
        runs = ", ".join(f"{step.sigma:.4g} (block {step.block})" for step in self.steps)
        return f"{runs}, then {self.steps[-1].sigma_next:g}"


def _allot(law: NoiseLaw, edges: Sequence[float], steps: int, spacing: Spacing, allotment: Allotment) -> list[int]:
    """How many of the steps each block gets."""
    num_blocks = len(edges) - 1
    if allotment == "even":
        base, rest = divmod(steps, num_blocks)
        return [base + (block < rest) for block in range(num_blocks)]
    if allotment != "range":
        raise InputError("allotment", allotment, "even or range")
    grid = _place(law, edges[0], edges[-1], steps, spacing)
    counts = [sum(hi >= sigma > lo for sigma in grid) for hi, lo in itertools.pairwise(edges)]
    while min(counts) == 0:  # a block without a step takes one from the block that has most
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] += 1
    return counts


def _place(law: NoiseLaw, hi: float, lo: float, count: int, spacing: Spacing) -> list[float]:
    """`count` decreasing levels in (lo, hi], the first exactly hi."""
    share = torch.arange(count, dtype=torch.float64) / count
    if spacing == "karras":
        rho = 7.0
        levels = (hi ** (1 / rho) + share * (lo ** (1 / rho) - hi ** (1 / rho))) ** rho
    elif spacing == "linear":
        levels = hi + share * (lo - hi)
    elif spacing == "log":
        if lo <= 0:
            raise InputError("spacing", spacing, "another one: the law's cleanest level is 0", "take mass or linear")
        levels = (math.log(hi) + share * (math.log(lo) - math.log(hi))).exp()
    elif spacing == "mass":
        mass_hi, mass_lo = law.cdf(torch.tensor([hi, lo], dtype=torch.float64))
        levels = law.icdf(mass_hi + share * (mass_lo - mass_hi))
    else:
        raise InputError("spacing", spacing, "one of karras, log, mass, linear")
    return [hi, *levels[1:].tolist()]


SamplerStep = Callable[[Denoiser, Tensor, PlanStep, torch.Generator | None], tuple[Tensor, Tensor]]


def euler(denoise: Denoiser, z: Tensor, step: PlanStep, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Euler's step of the probability-flow ODE: z' = a z + (1 - a) D(z, sigma), a = sigma_next / sigma.

    (Eq. 3-4 are printed with the opposite sign, under which the noise would grow.) One call; first order.

    Returns:
        (z at sigma_next, denoised), both (B, ...).
    """
    denoised = denoise(z, _levels(step.sigma, z))
    share = step.sigma_next / step.sigma
    return share * z + (1.0 - share) * denoised, denoised


def heun(denoise: Denoiser, z: Tensor, step: PlanStep, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Heun's step (Karras et al. 2022, Algorithm 1): Euler, then the mean of the slopes at both ends.

    The corrector at the edge of a block runs the block of this step. Two calls, one when sigma_next is 0; second order.
    """
    predicted, denoised = euler(denoise, z, step, generator)
    if step.sigma_next == 0:
        return predicted, denoised
    slope = (z - denoised) / step.sigma
    corrected = (predicted - denoise(predicted, _levels(step.sigma_next, z))) / step.sigma_next
    return z + (step.sigma_next - step.sigma) * 0.5 * (slope + corrected), denoised


def ancestral(denoise: Denoiser, z: Tensor, step: PlanStep, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """The ancestral step with a bridge: z' ~ q(z at sigma_next | z, y) for the y that `denoise` returns.

    With r = sigma_next^2 / sigma^2: z' = r z + (1 - r) y + sigma_next sqrt(1 - r) eps. If `denoise` returns a *sample*
    of the posterior of y (the sampled bridge), the chain is exact at any number of steps; if it returns the mean, the
    variance falls short by that of the posterior. One call.
    """
    y = denoise(z, _levels(step.sigma, z))
    ratio = (step.sigma_next / step.sigma) ** 2
    noise = torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
    return ratio * z + (1.0 - ratio) * y + step.sigma_next * math.sqrt(1.0 - ratio) * noise, y


def dpmpp_2m() -> SamplerStep:
    """A fresh DPM-Solver++(2M) (Lu et al. 2022, Algorithm 2), which remembers the step before while a chain runs.

    With lambda = -ln sigma, h its step and r the ratio of the step before to this one, the denoised target is
    extrapolated linearly to D' = D + (D - D_before) / (2 r), then z' = (sigma_next / sigma) z - expm1(-h) D'. The first
    step, and the last one to 0, are Euler's. The step before may have been another block's. One call; second order.
    """
    before: tuple[PlanStep, Tensor] | None = None

    def take(denoise: Denoiser, z: Tensor, step: PlanStep, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        nonlocal before
        denoised = denoise(z, _levels(step.sigma, z))
        ahead = denoised
        if before is not None and before[0].sigma_next == step.sigma and step.sigma_next > 0:
            last, last_denoised = before
            ratio = math.log(last.sigma / last.sigma_next) / math.log(step.sigma / step.sigma_next)
            ahead = denoised + (denoised - last_denoised) / (2 * ratio)
        before = step, denoised
        share = step.sigma_next / step.sigma
        return share * z + (1.0 - share) * ahead, denoised

    return take


SAMPLERS: dict[str, Callable[[], SamplerStep]] = {
    "euler": lambda: euler,
    "heun": lambda: heun,
    "dpmpp-2m": dpmpp_2m,
}
"""Samplers of the probability-flow ODE by name; each call gives one for a new chain."""


def initial_state(
    shape: Sequence[int], plan: SamplingPlan, start: Start, generator: torch.Generator | None = None
) -> Tensor:
    """z where the chain starts: zeros, or sigma * eps at the plan's first sigma. Shape as given, float32.

    Raises:
        InputError: an unknown start, or start "noise" without a generator.
    """
    if start == "zero":
        return torch.zeros(*shape)
    if start != "noise":
        raise InputError("start", start, "zero or noise")
    if generator is None:
        raise InputError("generator", None, "a torch.Generator when start is noise", "pass generator=")
    return plan.steps[0].sigma * torch.randn(*shape, generator=generator, device=generator.device)


def trajectory(
    denoisers: Sequence[Denoiser],
    z: Tensor,
    plan: SamplingPlan,
    sampler: SamplerStep = euler,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[PlanStep, Tensor, Tensor]]:
    """Run the plan and yield (step, z after the step, denoised in the step) for each of its steps.

    Args:
        denoisers: one denoiser per block, indexed by the plan's block.
        z: state at the plan's first sigma (B, ...).
        plan: the steps.
        sampler: euler, heun, ancestral, or a fresh dpmpp_2m().
        generator: randomness of the ancestral sampler.
    """
    for step in plan.steps:
        z, denoised = sampler(denoisers[step.block], z, step, generator)
        yield step, z, denoised


def sample(
    denoisers: Sequence[Denoiser],
    z: Tensor,
    plan: SamplingPlan,
    sampler: SamplerStep = euler,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Run the plan and return z after its last step (B, ...); arguments as for `trajectory`."""
    for _, z, _ in trajectory(denoisers, z, plan, sampler, generator):  # noqa: B007, B020
        pass
    return z


def _levels(sigma: float, z: Tensor) -> Tensor:
    return torch.full((z.shape[0],), sigma, dtype=torch.float64, device=z.device)
