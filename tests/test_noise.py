"""LogNormal is the truncated normal law of log sigma, to the last digits that float64 holds; draws follow it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from diffusionblocks.errors import InputError
from diffusionblocks.noise import LogNormal, draw_levels

LAWS = [
    LogNormal(),
    LogNormal(p_mean=0.3, p_std=1.0),
    LogNormal(p_mean=2.0, p_std=0.5, sigma_min=0.1, sigma_max=10.0),
    LogNormal(p_mean=-3.0, p_std=2.5, sigma_min=0.01, sigma_max=1.0),
]
MASSES = torch.linspace(0.0, 1.0, 101, dtype=torch.float64)


def truncated_normal(law: LogNormal, lo: float | None = None, hi: float | None = None):
    """scipy's law of log sigma on [lo, hi], by default on the law's whole range."""
    ends = np.log([lo or law.sigma_min, hi or law.sigma_max])
    return stats.truncnorm(*((ends - law.p_mean) / law.p_std), loc=law.p_mean, scale=law.p_std)


@pytest.mark.parametrize("law", LAWS)
def test_cdf_is_that_of_the_truncated_normal_of_log_sigma(law):
    levels = np.geomspace(law.sigma_min, law.sigma_max, 101)
    expected = truncated_normal(law).cdf(np.log(levels))
    np.testing.assert_allclose(law.cdf(torch.from_numpy(levels)).numpy(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("law", LAWS)
def test_icdf_is_that_of_the_truncated_normal_of_log_sigma(law):
    expected = np.exp(truncated_normal(law).ppf(MASSES[1:-1].numpy()))
    np.testing.assert_allclose(law.icdf(MASSES[1:-1]).numpy(), expected, rtol=1e-11)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(law=st.sampled_from(LAWS), mass=st.floats(0.0, 1.0))
def test_icdf_inverts_cdf(law, mass):
    level = law.icdf(torch.tensor(mass, dtype=torch.float64))
    assert law.sigma_min <= float(level) <= law.sigma_max
    assert float(law.cdf(level)) == pytest.approx(mass, abs=1e-12)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(law=st.sampled_from(LAWS), share=st.floats(0.0, 1.0))
def test_cdf_inverts_icdf(law, share):
    level = law.sigma_min * (law.sigma_max / law.sigma_min) ** share
    mass = law.cdf(torch.tensor(level, dtype=torch.float64))
    assume(1e-6 < float(mass) < 1 - 1e-6)  # further out a mass has too few digits to name a level
    assert float(law.icdf(mass)) == pytest.approx(level, rel=1e-8)


@pytest.mark.parametrize("law", LAWS)
def test_cdf_is_0_and_1_at_the_ends_and_beyond_them(law):
    ends = torch.tensor([law.sigma_min, law.sigma_max], dtype=torch.float64)
    assert law.cdf(ends).tolist() == pytest.approx([0.0, 1.0], abs=1e-15)
    assert law.cdf(ends * torch.tensor([0.5, 2.0])).tolist() == [0.0, 1.0]
    assert (law.cleanest, law.noisiest) == (law.sigma_min, law.sigma_max)


def test_cdf_is_exact_at_the_ends():
    ends = [torch.tensor([law.sigma_min, law.sigma_max], dtype=torch.float64) for law in LAWS]
    assert [law.cdf(end).tolist() for law, end in zip(LAWS, ends, strict=True)] == [[0.0, 1.0]] * len(LAWS)


def test_icdf_is_exact_at_the_ends():
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert [law.icdf(ends).tolist() for law in LAWS] == [[law.sigma_min, law.sigma_max] for law in LAWS]


def test_the_end_of_a_narrow_law_is_a_finite_level():
    law = LogNormal(p_mean=0.0, p_std=0.1)
    assert law.icdf(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [0.002, 80.0]


def test_score_is_log_sigma_in_units_of_the_law():
    law = LogNormal(p_mean=-1.0, p_std=2.0)
    levels = torch.tensor([math.exp(-1.0), math.e, math.exp(-5.0)], dtype=torch.float64)
    torch.testing.assert_close(law.score(levels), torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64))


@pytest.mark.parametrize("function", ["cdf", "icdf", "score"])
def test_float32_input_is_computed_in_float64(function):
    compute = getattr(LogNormal(), function)
    values = torch.tensor([0.1, 0.3, 0.7], dtype=torch.float32)
    assert compute(values).dtype == torch.float64
    assert torch.equal(compute(values), compute(values.double()))


@pytest.mark.parametrize(
    ("lo", "hi"), [(0.002, 80.0), (0.505, 80.0), (0.18, 0.505), (0.002, 0.18), (0.1, 1.0)], ids=str
)
def test_draws_inside_an_interval_follow_the_law(lo, hi):
    law = LogNormal()
    draws = draw_levels(law, lo, hi, 4000, torch.Generator().manual_seed(0))
    assert draws.dtype == torch.float64
    assert draws.shape == (4000,)
    assert lo <= float(draws.min())
    assert float(draws.max()) <= hi
    assert stats.kstest(draws.log().numpy(), truncated_normal(law, lo, hi).cdf).pvalue > 0.01


def test_draws_have_the_resolution_of_float64():
    """A uniform number in float32 has 24 bits, so masses of such draws would be multiples of 2^-24."""
    law = LogNormal()
    draws = draw_levels(law, law.sigma_min, law.sigma_max, 100, torch.Generator().manual_seed(0))
    ticks = law.cdf(draws) * 2**24
    assert float((ticks - ticks.round()).abs().mean()) > 0.1


def test_draws_depend_on_the_generator_alone():
    def draw(seed: int) -> torch.Tensor:
        return draw_levels(LogNormal(), 0.1, 1.0, 8, torch.Generator().manual_seed(seed))

    first = draw(1)
    torch.rand(3)
    assert torch.equal(draw(1), first)
    assert not torch.equal(draw(2), first)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("p_mean", [math.nan, math.inf, -math.inf]),
        ("p_std", [0.0, -1.0, math.nan, math.inf]),
        ("sigma_min", [0.0, -0.1, math.nan, math.inf]),
        ("sigma_max", [0.002, 0.001, -1.0, math.nan, math.inf]),
    ],
)
def test_a_bad_setting_is_refused_by_name(setting, values):
    for value in values:
        with pytest.raises(InputError) as error:
            LogNormal(**{setting: value})
        assert error.value.setting == setting
        assert str(error.value).startswith(f"{setting}={value!r}: expected ")


@pytest.mark.parametrize("p_mean", [-100.0, -13.0, 11.0, 100.0])
def test_a_range_without_mass_is_refused(p_mean):
    with pytest.raises(InputError, match=r"^p_mean=.*sigma_min=0\.002 and sigma_max=80\.0; move p_mean") as error:
        LogNormal(p_mean=p_mean)
    assert error.value.value == p_mean


@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.1])
def test_widen_multiplies_both_ends_by_a_power_of_the_width(gamma):
    """Appendix C: [lo / a, hi * a] with a = (hi / lo)^gamma, so log(hi / lo) grows by 1 + 2 gamma about its middle."""
    lo, hi = LogNormal().widen(0.18, 0.505, gamma)
    assert math.log(hi / lo) == pytest.approx((1 + 2 * gamma) * math.log(0.505 / 0.18), rel=1e-12)
    assert lo * hi == pytest.approx(0.18 * 0.505, rel=1e-12)


def test_widen_is_clipped_to_the_range_of_the_law():
    law = LogNormal()
    assert law.widen(0.505, 80.0, 0.1) == (pytest.approx(0.505 * (0.505 / 80.0) ** 0.1), 80.0)
    assert law.widen(0.002, 0.18, 0.1) == (0.002, pytest.approx(0.18 * (0.18 / 0.002) ** 0.1))
    assert law.widen(0.002, 80.0, 0.1) == (0.002, 80.0)
