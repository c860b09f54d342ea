"""A plan runs every block, in order, at levels inside its own interval; the samplers solve what they claim to solve."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from diffusionblocks.errors import InputError
from diffusionblocks.noise import LogNormal
from diffusionblocks.partition import noise_edges
from diffusionblocks.sampling import (
    PlanStep,
    SamplingPlan,
    ancestral,
    dpmpp_2m,
    euler,
    heun,
    initial_state,
    sample,
    trajectory,
)

LAW = LogNormal()
SAMPLERS = pytest.mark.parametrize("sampler", [euler, heun, ancestral])


def build(num_blocks: int, num_steps: int, spacing: str = "karras", law: LogNormal = LAW) -> SamplingPlan:
    return SamplingPlan.build(law, noise_edges(law, num_blocks), num_steps, spacing)  # pyright: ignore[reportArgumentType]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Recorder:
    """Denoisers of a chain, one a block, that write down who was called at which level and denoise to zero."""

    def __init__(self, num_blocks: int):
        self.calls: list[tuple[int, float]] = []
        self.denoisers = [self._denoiser(block) for block in range(num_blocks)]

    def _denoiser(self, block: int):
        def denoise(z: Tensor, sigma: Tensor) -> Tensor:
            assert sigma.dtype == torch.float64
            assert sigma.shape == z.shape[:1]
            self.calls.append((block, float(sigma[0])))
            return torch.zeros_like(z)

        return denoise


# The plan.


@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data(), num_blocks=st.integers(1, 12), spacing=st.sampled_from(["karras", "log", "mass"]))
def test_any_plan_runs_every_block_in_order_inside_its_own_interval(data, num_blocks, spacing):
    num_steps = data.draw(st.integers(num_blocks, 60))
    plan = build(num_blocks, num_steps, spacing)
    edges, blocks = noise_edges(LAW, num_blocks), plan.blocks()
    levels = [step.sigma for step in plan.steps] + [plan.steps[-1].sigma_next]
    assert len(plan.steps) == num_steps
    assert set(blocks) == set(range(num_blocks))
    assert list(blocks) == sorted(blocks)
    assert (levels[0], levels[-1]) == (80.0, 0.0)
    assert all(a > b for a, b in itertools.pairwise(levels))
    assert [step.sigma_next for step in plan.steps] == levels[1:]
    assert all(edges[step.block + 1] < step.sigma <= edges[step.block] for step in plan.steps)


@pytest.mark.parametrize(
    ("num_blocks", "num_steps", "counts"), [(3, 3, [1, 1, 1]), (3, 4, [2, 1, 1]), (3, 50, [17, 17, 16]), (1, 5, [5])]
)
def test_steps_are_allotted_evenly_and_the_first_blocks_take_the_remainder(num_blocks, num_steps, counts):
    blocks = build(num_blocks, num_steps).blocks()
    assert [blocks.count(block) for block in range(num_blocks)] == counts


def test_a_block_starts_at_its_upper_edge_exactly():
    plan = build(4, 11)
    assert plan.first_sigmas() == dict(enumerate(noise_edges(LAW, 4)[:-1]))


@pytest.mark.parametrize("spacing", ["karras", "log", "mass"])
def test_levels_inside_a_block_are_even_on_the_scale_of_the_spacing(spacing):
    """Karras et al. 2022, Eq. 5 (even in sigma^(1/7)), even in log sigma, or even in probability mass."""
    ends = np.log([0.002, 80.0])
    normal = stats.truncnorm(*((ends + 1.2) / 1.2), loc=-1.2, scale=1.2)
    scale = {"karras": lambda s: s ** (1 / 7), "log": np.log, "mass": lambda s: normal.cdf(np.log(s))}[spacing]
    edges, plan = noise_edges(LAW, 3), build(3, 14, spacing)
    for block, count in enumerate([5, 5, 4]):
        levels = [step.sigma for step in plan.steps if step.block == block]
        grid = np.linspace(scale(edges[block]), scale(edges[block + 1]), count + 1)
        np.testing.assert_allclose(scale(np.array(levels)), grid[:-1], rtol=1e-9)


def test_fewer_steps_than_blocks_are_refused_with_the_reason():
    with pytest.raises(InputError) as error:
        build(4, 3)
    assert (
        str(error.value) == "num_sampling_steps=3: expected at least one step for each of the 4 blocks; take 4 or more"
    )


@pytest.mark.parametrize("count", [0, -1, 2.5, 4.0, True, "4", None], ids=repr)
def test_what_is_no_number_of_steps_is_refused(count):
    with pytest.raises(InputError, match=r"^num_sampling_steps=.*: expected a whole number of at least 1$"):
        build(1, count)


def test_an_unknown_spacing_is_refused():
    with pytest.raises(InputError, match=r"^spacing='even': expected one of karras, log, mass, linear$"):
        build(3, 3, "even")


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [(2.0, 2.0)],
        [(2.0, 3.0)],
        [(2.0, 1.0), (1.0, 1.5)],
        [(2.0, 1.0), (0.5, 0.0)],
        [(2.0, -1.0)],
        [(math.inf, 1.0)],
        [(math.nan, 1.0)],
        [(2.0, math.nan)],
    ],
    ids=repr,
)
def test_a_grid_that_does_not_strictly_decrease_and_join_is_refused(steps):
    with pytest.raises(InputError, match=r"^steps=.*: expected finite noise levels that strictly decrease and join$"):
        SamplingPlan(tuple(PlanStep(sigma, after, 0) for sigma, after in steps))


def test_a_plan_says_its_grid_its_blocks_and_its_last_step():
    plan = SamplingPlan((PlanStep(4.0, 1.5, 0), PlanStep(1.5, 0.5, 1), PlanStep(0.5, 0.0, 1)))
    assert plan.describe() == "4 (block 0), 1.5 (block 1), 0.5 (block 1), then 0"
    assert plan.last_steps() == {0: 0, 1: 2}
    assert plan.first_sigmas() == {0: 4.0, 1: 1.5}


# Calls of the denoisers.


@pytest.mark.parametrize("num_steps", [3, 4, 9])
@pytest.mark.parametrize(
    ("sampler", "calls"),
    [(euler, lambda n: n), (heun, lambda n: 2 * n - 1), (ancestral, lambda n: n), (dpmpp_2m(), lambda n: n)],
)
def test_n_steps_make_the_stated_number_of_calls(sampler, calls, num_steps):
    recorder = Recorder(3)
    sample(recorder.denoisers, torch.ones(2, 4), build(3, num_steps), sampler, generator())
    assert len(recorder.calls) == calls(num_steps)


@pytest.mark.parametrize("sampler", [euler, ancestral])
def test_each_step_calls_the_block_of_the_plan_at_its_level(sampler):
    recorder, plan = Recorder(3), build(3, 4)
    sample(recorder.denoisers, torch.ones(2, 4), plan, sampler, generator())
    assert recorder.calls == [(step.block, step.sigma) for step in plan.steps]
    assert {block for block, _ in recorder.calls} == {0, 1, 2}


def test_heuns_corrector_runs_the_block_of_its_step_even_at_the_edge():
    recorder, plan = Recorder(3), build(3, 4)
    sample(recorder.denoisers, torch.ones(2, 4), plan, heun)
    corrected = [[(step.block, step.sigma), (step.block, step.sigma_next)] for step in plan.steps]
    assert recorder.calls == list(itertools.chain(*corrected))[:-1]


@pytest.mark.parametrize("spacing", ["karras", "log", "mass"])
@pytest.mark.parametrize(("num_blocks", "steps"), [(1, 5), (3, 3), (3, 20), (3, 50), (6, 6), (6, 20)])
def test_steps_by_range_are_those_of_one_grid_and_at_least_one(num_blocks, steps, spacing):
    law = LogNormal()
    edges = noise_edges(law, num_blocks)
    plan = SamplingPlan.build(law, edges, steps, spacing, "range")
    whole = [step.sigma for step in SamplingPlan.build(law, (80.0, 0.002), steps, spacing).steps]
    found = [plan.blocks().count(block) for block in range(num_blocks)]
    wanted = [sum(hi >= sigma > lo for sigma in whole) for hi, lo in itertools.pairwise(edges)]
    assert sum(found) == steps
    assert min(found) >= 1
    if min(wanted) >= 1:
        assert found == wanted
    assert list(plan.blocks()) == sorted(plan.blocks())


def test_edms_grid_at_three_blocks():
    """Karras et al. 2022 with 50 steps: 33, 4 and 13 levels, their last being sigma_min itself; ours ends before it."""
    law = LogNormal()
    plan = SamplingPlan.build(law, noise_edges(law, 3), 50, "karras", "range")
    assert [plan.blocks().count(block) for block in range(3)] == [34, 4, 12]


def test_the_trajectory_yields_every_step_and_ends_in_the_sample():
    plan, z = build(2, 5), torch.randn(3, 4, generator=generator())
    denoisers = [lambda z, sigma: 0.5 * z, lambda z, sigma: 0.25 * z]
    states = list(trajectory(denoisers, z, plan))
    assert [step for step, _, _ in states] == list(plan.steps)
    assert torch.equal(states[-1][1], sample(denoisers, z, plan))
    befores = [z] + [after for _, after, _ in states[:-1]]
    for before, (step, _, denoised) in zip(befores, states, strict=True):
        assert torch.equal(denoised, (0.5, 0.25)[step.block] * before)


@SAMPLERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_state_keeps_its_dtype_and_shape(sampler, dtype):
    z = sample([lambda z, sigma: 0.5 * z], torch.ones(2, 3, 4, dtype=dtype), build(1, 3), sampler, generator())
    assert z.dtype == dtype
    assert z.shape == (2, 3, 4)


# Solutions of the probability-flow ODE.


@pytest.mark.parametrize(("sampler", "order"), [(euler, 1), (heun, 2), (dpmpp_2m(), 2)])
def test_the_error_falls_at_the_order_of_the_sampler(sampler, order):
    """For y ~ N(m, s^2) the denoiser is linear and the exact solution scales z - m with sqrt(s^2 + sigma^2)."""
    mean, s, law = 0.7, 0.5, LogNormal(p_mean=-0.7, sigma_min=0.05, sigma_max=5.0)

    def denoise(z: Tensor, sigma: Tensor) -> Tensor:
        variance = (sigma**2)[:, None]
        return (s**2 * z + variance * mean) / (s**2 + variance)

    z = torch.tensor([[4.0], [-3.0]], dtype=torch.float64)
    exact = mean + (z - mean) * math.sqrt((s**2 + 0.05**2) / (s**2 + 5.0**2))
    numbers, errors = [24, 48, 96, 192, 384], []
    for number in numbers:
        *inner, last = build(3, number, "log", law).steps
        plan = SamplingPlan((*inner, PlanStep(last.sigma, 0.05, last.block)))
        errors.append(float((sample([denoise] * 3, z, plan, sampler) - exact).abs().max()))
    slope = np.polyfit(np.log(numbers), np.log(errors), 1)[0]
    assert slope == pytest.approx(-order, abs=0.1)
    assert errors[-1] < 0.05 / numbers[-1] ** (order - 1)


def test_a_step_of_euler_removes_noise():
    """z' - y = (sigma' / sigma) (z - y) towards a constant y; the sign of Eq. 3-4 as printed would add noise."""
    y = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    z = y + torch.tensor([[3.0, 5.0]], dtype=torch.float64)
    after, denoised = euler(lambda z, sigma: y, z, PlanStep(2.0, 0.5, 0), None)
    torch.testing.assert_close(after - y, 0.25 * (z - y))
    assert torch.equal(denoised, y)


@SAMPLERS
def test_a_chain_ends_at_a_constant_denoised_target(sampler):
    y = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    z = 80.0 * torch.randn(1, 3, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(sample([lambda z, sigma: y] * 2, z, build(2, 6), sampler, generator()), y)


def test_heun_is_the_mean_of_the_slopes_at_both_ends():
    """dz/dsigma = (z - D) / sigma with D = z^2, by hand: z = 1.5, sigma from 2 to 1."""
    after, denoised = heun(lambda z, sigma: z**2, torch.tensor([[1.5]]).double(), PlanStep(2.0, 1.0, 0), None)
    first = (1.5 - 1.5**2) / 2.0
    predicted = 1.5 - first
    second = (predicted - predicted**2) / 1.0
    assert float(after) == pytest.approx(1.5 - (first + second) / 2, rel=1e-14)
    assert float(denoised) == 1.5**2


# The ancestral step with a sampled bridge.


def test_the_bridge_has_the_mean_and_variance_of_its_posterior():
    """q(z' | z, y): z' ~ N(y, s'^2) and z | z' ~ N(z', s^2 - s'^2), joined by Bayes' rule for Gaussians."""
    sigma, after, z, y = 2.0, 1.5, 3.0, -1.0
    precision = 1 / after**2 + 1 / (sigma**2 - after**2)
    mean = (y / after**2 + z / (sigma**2 - after**2)) / precision
    n = 20_000
    draws, _ = ancestral(
        lambda z, sigma: torch.full_like(z, y),
        torch.full((n, 1), z, dtype=torch.float64),
        PlanStep(sigma, after, 0),
        generator(),
    )
    assert float(draws.mean()) == pytest.approx(mean, abs=4 / math.sqrt(precision * n))
    assert float(draws.var()) == pytest.approx(1 / precision, rel=4 * math.sqrt(2 / n))


@pytest.mark.parametrize("num_steps", [2, 3, 5])
def test_with_posterior_samples_the_ancestral_chain_is_exact_for_gaussian_data(num_steps):
    """After each of few steps z ~ N(m, s^2 + sigma^2), and the chain ends in draws of the data."""
    mean, s, n, law = 0.7, 0.5, 20_000, LogNormal(p_mean=0.0, p_std=1.0, sigma_min=0.2, sigma_max=2.0)
    randomness = generator(1)

    def draw_posterior(z: Tensor, sigma: Tensor) -> Tensor:
        variance = (sigma**2)[:, None]
        spread = (s**2 * variance / (s**2 + variance)).sqrt()
        noise = torch.randn(z.shape, generator=randomness, dtype=z.dtype)
        return (s**2 * z + variance * mean) / (s**2 + variance) + spread * noise

    z = mean + math.sqrt(s**2 + 2.0**2) * torch.randn(n, 1, generator=randomness, dtype=torch.float64)
    for step, after, _ in trajectory([draw_posterior] * 2, z, build(2, num_steps, law=law), ancestral, randomness):
        variance = s**2 + step.sigma_next**2
        assert float(after.mean()) == pytest.approx(mean, abs=4 * math.sqrt(variance / n))
        assert float(after.var()) == pytest.approx(variance, rel=4 * math.sqrt(2 / n))


def two_points() -> tuple[Tensor, Tensor]:
    return torch.tensor([[-1.0], [2.0]], dtype=torch.float64), torch.tensor([0.8, 0.2], dtype=torch.float64)


def five_classes() -> tuple[Tensor, Tensor]:
    table = torch.randn(5, 3, generator=generator(7), dtype=torch.float64)
    return table, torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=torch.float64)


@pytest.mark.parametrize("target", [two_points, five_classes])
@pytest.mark.parametrize("num_steps", [3, 8])
def test_with_posterior_samples_the_ancestral_chain_emits_classes_at_their_frequencies(target, num_steps):
    (table, prior), n = target(), 20_000
    law = LogNormal(p_mean=0.0, p_std=1.0, sigma_min=0.1, sigma_max=4.0)
    randomness = generator(2)

    def draw_posterior(z: Tensor, sigma: Tensor) -> Tensor:
        logits = prior.log() - torch.cdist(z, table) ** 2 / (2 * sigma**2)[:, None]
        return table[torch.multinomial(logits.softmax(dim=1), 1, generator=randomness)[:, 0]]

    start = torch.multinomial(prior, n, replacement=True, generator=randomness)
    z = table[start] + 4.0 * torch.randn(n, table.shape[1], generator=randomness, dtype=torch.float64)
    emitted = sample([draw_posterior] * 3, z, build(3, num_steps, law=law), ancestral, randomness)
    counts = torch.cdist(emitted, table).argmin(dim=1).bincount(minlength=len(prior))
    assert stats.chisquare(counts.numpy(), n * prior.numpy()).pvalue > 0.001
    # The last step moves to level 0, so what the chain emits is a class and no noise.
    assert float(torch.cdist(emitted, table).min(dim=1).values.max()) < 1e-6


def test_the_ancestral_chain_depends_on_the_generator_alone():
    def chain(seed: int) -> Tensor:
        return list(trajectory([lambda z, sigma: 0.5 * z], torch.ones(2, 3), build(1, 3), ancestral, generator(seed)))[
            1
        ][1]

    first = chain(0)
    torch.rand(3)
    assert torch.equal(chain(0), first)
    assert not torch.equal(chain(1), first)


# The state a chain starts from.


def test_a_chain_starts_from_zero_or_from_noise_at_the_first_level():
    plan, n = build(3, 3), 20_000
    assert torch.equal(initial_state((2, 3), plan, "zero"), torch.zeros(2, 3))
    noise = initial_state((n, 2), plan, "noise", generator())
    assert noise.shape == (n, 2)
    assert noise.dtype == torch.float32
    assert stats.kstest(noise.flatten().numpy() / 80.0, stats.norm.cdf).pvalue > 0.01
    assert torch.equal(initial_state((n, 2), plan, "noise", generator()), noise)


def test_a_start_that_cannot_be_made_is_refused():
    with pytest.raises(InputError, match=r"^start='one': expected zero or noise$"):
        initial_state((2, 3), build(3, 3), "one")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"^generator=None: expected a torch.Generator when start is noise"):
        initial_state((2, 3), build(3, 3), "noise")


def test_dpmpp_2m_is_the_formula_of_its_second_step():
    """Lu et al. 2022, Algorithm 2, in lambda = -ln sigma, written with exponentials."""
    levels = [4.0, 2.0, 0.7]
    lam = [-math.log(sigma) for sigma in levels]
    take, z = dpmpp_2m(), torch.tensor([[1.3]], dtype=torch.float64)
    denoised = [0.4, -0.9]
    first, _ = take(lambda z, sigma: torch.full_like(z, denoised[0]), z, PlanStep(4.0, 2.0, 0), None)
    second, _ = take(lambda z, sigma: torch.full_like(z, denoised[1]), first, PlanStep(2.0, 0.7, 1), None)
    h0, h1 = lam[1] - lam[0], lam[2] - lam[1]
    expected = math.exp(-h0) * 1.3 - math.expm1(-h0) * denoised[0]
    assert float(first) == pytest.approx(expected, rel=1e-12)
    r = h0 / h1
    ahead = (1 + 1 / (2 * r)) * denoised[1] - 1 / (2 * r) * denoised[0]
    assert float(second) == pytest.approx(math.exp(-h1) * expected - math.expm1(-h1) * ahead, rel=1e-12)


def test_dpmpp_2m_remembers_its_own_chain_alone():
    plan, z = build(3, 9), torch.randn(2, 4, generator=generator()).double()
    denoisers = [lambda z, sigma, k=k: torch.tanh((k + 1) * z) for k in range(3)]
    fresh = sample(denoisers, z, plan, dpmpp_2m())
    assert not torch.equal(fresh, sample(denoisers, z, plan, euler))
    used = dpmpp_2m()
    both = [sample(denoisers, start, plan, used) for start in (2 * z, z)]
    assert torch.equal(fresh, both[1])
