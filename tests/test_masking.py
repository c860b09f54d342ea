"""Masking as a noise law: masses are masked shares, blocks are cut at equal decrements of alpha, plans run to 0."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from diffusionblocks.config import MaskedLmConfig, validate
from diffusionblocks.errors import InputError
from diffusionblocks.noise import LogNormal, Masking, draw_levels
from diffusionblocks.partition import Interval, noise_edges, noise_intervals, training_interval
from diffusionblocks.sampling import SamplingPlan

SCHEDULES = ("linear", "cosine")
LAWS = [Masking("linear"), Masking("cosine")]
ANY_LAW = [*LAWS, LogNormal(), LogNormal(p_mean=0.3, p_std=1.0)]
ALPHA = {"linear": lambda t: 1 - t, "cosine": lambda t: 1 - np.sin(np.pi * t / 2)}

over_laws = pytest.mark.parametrize("law", LAWS, ids=SCHEDULES)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# The law.


@over_laws
def test_alpha_is_the_schedules_formula(law):
    levels = np.linspace(0, 1, 101)
    expected = ALPHA[law.schedule](levels)
    np.testing.assert_allclose(law.alpha(torch.from_numpy(levels)).numpy(), expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(law.cdf(torch.from_numpy(levels)).numpy(), 1 - expected, rtol=0, atol=1e-15)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(law=st.sampled_from(LAWS), mass=st.floats(0.0, 1.0))
def test_icdf_inverts_cdf(law, mass):
    level = law.icdf(vector(mass))
    assert 0.0 <= float(level) <= 1.0
    assert float(law.cdf(level)) == pytest.approx(mass, abs=1e-12)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(law=st.sampled_from(LAWS), level=st.floats(0.0, 0.99))
def test_cdf_inverts_icdf(law, level):
    """Near t = 1 the cosine is flat, so that a mass there has too few digits to name a level."""
    assert float(law.icdf(law.cdf(vector(level)))) == pytest.approx(level, abs=1e-9)


@over_laws
def test_the_ends_are_exact_and_what_lies_beyond_is_clipped(law):
    assert (law.cleanest, law.noisiest) == (0.0, 1.0)
    for function in (law.cdf, law.icdf):
        assert function(vector(-0.5, 0.0, 1.0, 1.5)).tolist() == [0.0, 0.0, 1.0, 1.0]


@over_laws
@pytest.mark.parametrize("function", ["cdf", "icdf", "score", "alpha"])
def test_float32_input_is_computed_in_float64(law, function):
    values = torch.tensor([0.1, 0.3, 0.7], dtype=torch.float32)
    compute = getattr(law, function)
    assert compute(values).dtype == torch.float64
    assert torch.equal(compute(values), compute(values.double()))


@over_laws
def test_the_score_of_drawn_levels_has_mean_0_and_unit_spread(law):
    score = law.score(law.icdf(torch.linspace(0, 1, 20_001, dtype=torch.float64)))
    assert float(score.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(score.std()) == pytest.approx(1.0, abs=1e-3)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(InputError, match=r"^schedule='sine': expected linear or cosine$"):
        Masking("sine")  # pyright: ignore[reportArgumentType]


# The cut.


@over_laws
@pytest.mark.parametrize("num_blocks", range(1, 8))
def test_blocks_are_cut_at_equal_decrements_of_alpha(law, num_blocks):
    edges = noise_edges(law, num_blocks)
    assert (edges[0], edges[-1]) == (1.0, 0.0)
    np.testing.assert_allclose(np.diff(ALPHA[law.schedule](np.array(edges))), 1 / num_blocks, rtol=0, atol=1e-9)


@over_laws
def test_equal_t_is_another_cut_unless_alpha_is_linear(law):
    by_alpha, by_time = noise_edges(law, 3), noise_edges(law, 3, "uniform-linear")
    np.testing.assert_allclose(by_time, [1, 2 / 3, 1 / 3, 0], rtol=0, atol=1e-12)
    if law.schedule == "linear":
        np.testing.assert_allclose(by_alpha, by_time, rtol=0, atol=1e-12)
    else:
        masked = -np.diff(1 - ALPHA["cosine"](np.array(by_time)))
        np.testing.assert_allclose(masked, [1 - math.sin(math.pi / 3), math.sin(math.pi / 3) - 0.5, 0.5], atol=1e-12)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    law=st.sampled_from(ANY_LAW), num_blocks=st.integers(1, 40), cut=st.sampled_from(["equal-mass", "uniform-linear"])
)
def test_edges_of_any_law_are_strictly_decreasing_between_exact_ends(law, num_blocks, cut):
    edges = noise_edges(law, num_blocks, cut)
    assert len(edges) == num_blocks + 1
    assert (edges[0], edges[-1]) == (law.noisiest, law.cleanest)
    assert all(math.isfinite(a) and a > b for a, b in itertools.pairwise(edges))
    if cut == "equal-mass":
        np.testing.assert_allclose(-np.diff(law.cdf(vector(*edges)).numpy()), 1 / num_blocks, rtol=0, atol=1e-9)


@over_laws
def test_the_log_cut_and_the_log_spacing_are_refused_with_what_to_take(law):
    with pytest.raises(InputError) as cut:
        noise_edges(law, 3, "uniform-log")
    assert (
        str(cut.value) == "cut='uniform-log': expected another one: the law's cleanest level is 0; take uniform-linear"
    )
    with pytest.raises(InputError) as spacing:
        SamplingPlan.build(law, noise_edges(law, 3), 6, "log")
    assert str(spacing.value) == (
        "spacing='log': expected another one: the law's cleanest level is 0; take mass or linear"
    )


@pytest.mark.parametrize("given_", [{"cut": "uniform-log"}, {"spacing": "log"}, {"spacing": "karras"}], ids=str)
def test_settings_have_no_scale_that_starts_above_0(given_):
    (name,) = given_
    with pytest.raises(InputError, match=f"^{name}='{given_[name]}': expected .*; it is the how"):
        validate(MaskedLmConfig, given_)


# The overlap.


@over_laws
@pytest.mark.parametrize("num_blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("gamma", [0.05, 0.1, 0.5])
def test_the_overlap_adds_gamma_of_a_blocks_mass_on_both_sides_and_is_clipped(law, num_blocks, gamma):
    for index, core in enumerate(noise_intervals(noise_edges(law, num_blocks))):
        wide = training_interval(law, core, gamma)
        lo, hi = 1 - ALPHA[law.schedule](np.array([wide.lo, wide.hi]))
        assert lo == pytest.approx(max(0, 1 - (index + 1 + gamma) / num_blocks), abs=1e-9)
        assert hi == pytest.approx(min(1, 1 - (index - gamma) / num_blocks), abs=1e-9)
        assert 0 <= wide.lo <= core.lo < core.hi <= wide.hi <= 1


@over_laws
def test_a_huge_overlap_is_the_whole_range(law):
    assert training_interval(law, Interval(0.3, 0.4), 1000.0) == Interval(0.0, 1.0)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(law=st.sampled_from(ANY_LAW), num_blocks=st.integers(1, 12))
def test_without_an_overlap_a_block_trains_on_its_core_to_the_last_digit(law, num_blocks):
    for core in noise_intervals(noise_edges(law, num_blocks)):
        assert training_interval(law, core, 0.0) == core


# Draws.


@over_laws
@pytest.mark.parametrize("stratified", [False, True])
def test_drawn_masses_are_uniform_over_the_interval(law, stratified):
    draws = draw_levels(law, 0.2, 0.7, 4000, torch.Generator().manual_seed(0), stratified)
    assert draws.dtype == torch.float64
    assert 0.2 <= float(draws.min()) <= float(draws.max()) <= 0.7
    lo, hi = 1 - ALPHA[law.schedule](np.array([0.2, 0.7]))
    assert stats.kstest(1 - ALPHA[law.schedule](draws.numpy()), stats.uniform(lo, hi - lo).cdf).pvalue > 0.01


@pytest.mark.parametrize("law", ANY_LAW, ids=repr)
def test_stratified_draws_have_one_level_in_each_part_of_equal_mass_at_random_in_it(law):
    lo, hi = (float(level) for level in law.icdf(vector(0.2, 0.85)))
    places = []
    for seed in range(200):
        masses = law.cdf(draw_levels(law, lo, hi, 7, torch.Generator().manual_seed(seed), stratified=True))
        share = (masses - 0.2) / 0.65 * 7
        assert share.floor().tolist() == list(range(7))
        places.append(share - share.floor())
    # The fractional parts of 1400 draws are uniform, so no part of the interval is missed.
    assert stats.kstest(torch.cat(places).numpy(), stats.uniform.cdf).pvalue > 0.01


@pytest.mark.parametrize("law", ANY_LAW, ids=repr)
def test_draws_that_are_not_stratified_are_independent_uniform_masses(law):
    """The same random numbers through the law, by hand."""
    lo, hi = (float(level) for level in law.icdf(vector(0.2, 0.85)))
    draws = draw_levels(law, lo, hi, 50, torch.Generator().manual_seed(5))
    uniform = torch.rand(50, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    torch.testing.assert_close(draws, law.icdf(0.2 + 0.65 * uniform), rtol=1e-9, atol=1e-9)


# The plan.


@settings(derandomize=True, max_examples=80, deadline=None)
@given(data=st.data(), law=st.sampled_from(LAWS), num_blocks=st.integers(1, 8))
def test_a_plan_goes_from_1_to_0_through_every_block_inside_its_own_interval(data, law, num_blocks):
    num_steps = data.draw(st.integers(num_blocks, 40))
    spacing = data.draw(st.sampled_from(["mass", "linear"]))
    allotment = data.draw(st.sampled_from(["even", "range"]))
    edges = noise_edges(law, num_blocks)
    plan = SamplingPlan.build(law, edges, num_steps, spacing, allotment)
    levels = [step.sigma for step in plan.steps] + [plan.steps[-1].sigma_next]
    assert (levels[0], levels[-1], len(plan.steps)) == (1.0, 0.0, num_steps)
    assert all(a > b for a, b in itertools.pairwise(levels))
    assert list(plan.blocks()) == sorted(plan.blocks())
    assert set(plan.blocks()) == set(range(num_blocks))
    assert all(edges[step.block + 1] < step.sigma <= edges[step.block] for step in plan.steps)


@over_laws
@pytest.mark.parametrize("spacing", ["mass", "linear"])
def test_steps_of_a_block_are_even_in_the_masked_share_or_in_t(law, spacing):
    edges = noise_edges(law, 3)
    plan = SamplingPlan.build(law, edges, 14, spacing)
    scale = (lambda t: 1 - ALPHA[law.schedule](np.array(t))) if spacing == "mass" else np.array
    for block, count in enumerate([5, 5, 4]):
        levels = [step.sigma for step in plan.steps if step.block == block]
        grid = np.linspace(scale(edges[block]), scale(edges[block + 1]), count + 1)[:-1]
        np.testing.assert_allclose(scale(levels), grid, rtol=0, atol=1e-9)


@over_laws
def test_fewer_steps_than_blocks_are_refused(law):
    with pytest.raises(InputError, match=r"^num_sampling_steps=3: expected at least one step for each of the 4 blocks"):
        SamplingPlan.build(law, noise_edges(law, 4), 3, "mass")
