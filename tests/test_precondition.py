"""The scalings have the properties they were derived from, and keep float64 until they meet what they multiply."""

import math

import pytest
import torch

from diffusionblocks.precondition import c_in, c_noise, c_out, c_skip, edm_weight, per_sample

SIGMA = torch.logspace(math.log10(0.002), math.log10(80.0), 60, dtype=torch.float64)
SCALES = pytest.mark.parametrize("s", [0.1, 0.5, 1.0, 3.0])
ONE = torch.ones_like(SIGMA)


def test_values_where_sigma_equals_sigma_data():
    """Karras et al. 2022, Table 1, at sigma = s: half of z, and every square root is sqrt(2) s."""
    sigma = torch.tensor([0.5], dtype=torch.float64)
    assert float(c_skip(sigma, 0.5)) == pytest.approx(1 / 2, rel=1e-15)
    assert float(c_out(sigma, 0.5)) == pytest.approx(0.5 / math.sqrt(2), rel=1e-15)
    assert float(c_in(sigma, 0.5)) == pytest.approx(math.sqrt(2), rel=1e-15)
    assert float(edm_weight(sigma, 0.5)) == pytest.approx(8.0, rel=1e-15)


def test_c_noise_is_a_quarter_of_log_sigma():
    torch.testing.assert_close(
        c_noise((4.0 * torch.arange(-2.0, 2.0).double()).exp()), torch.arange(-2.0, 2.0).double()
    )


@SCALES
def test_the_networks_input_has_unit_variance(s):
    variance_of_z = s**2 + SIGMA**2
    torch.testing.assert_close(c_in(SIGMA, s) ** 2 * variance_of_z, ONE)


@SCALES
def test_the_networks_target_has_unit_variance(s):
    """F's target is (y - c_skip (y + sigma eps)) / c_out with y and eps independent."""
    from_target = (1 - c_skip(SIGMA, s)) / c_out(SIGMA, s)
    from_noise = -c_skip(SIGMA, s) * SIGMA / c_out(SIGMA, s)
    torch.testing.assert_close(from_target**2 * s**2 + from_noise**2, ONE)


@SCALES
def test_c_skip_leaves_a_target_that_is_uncorrelated_with_z(s):
    """Which makes c_out the smallest that a linear share of z allows (Karras et al. 2022, Appendix B.6)."""
    covariance = (1 - c_skip(SIGMA, s)) * s**2 - c_skip(SIGMA, s) * SIGMA**2
    torch.testing.assert_close(covariance / s**2, torch.zeros_like(SIGMA), rtol=0, atol=1e-15)


@SCALES
def test_the_weight_makes_the_loss_of_d_the_loss_of_f(s):
    torch.testing.assert_close(edm_weight(SIGMA, s) * c_out(SIGMA, s) ** 2, ONE)


@pytest.mark.parametrize("scaling", [c_skip, c_out, c_in, edm_weight])
def test_scalings_stay_in_float64(scaling):
    value = scaling(SIGMA, 0.5)
    assert value.dtype == torch.float64
    assert value.shape == SIGMA.shape


@pytest.mark.parametrize("shape", [(4,), (4, 8), (4, 5, 8), (4, 3, 6, 6)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_per_sample_scales_each_sample_in_its_own_dtype(shape, dtype):
    like = torch.ones(shape, dtype=dtype)
    scaled = per_sample(torch.arange(1, 5, dtype=torch.float64), like) * like
    assert scaled.dtype == dtype
    assert scaled.shape == shape
    assert scaled.reshape(4, -1).float().tolist() == [[k] * like[0].numel() for k in (1.0, 2.0, 3.0, 4.0)]


@pytest.mark.parametrize("scaling", [c_skip, c_out, c_in, edm_weight])
def test_scalings_are_rounded_once_from_float64_to_bfloat16(scaling):
    """One rounding is at most half a unit of the 8 significant bits; arithmetic in bfloat16 (the control) is worse."""
    exact = scaling(SIGMA, 0.5)

    def worst(rounded: torch.Tensor) -> float:
        return float(((rounded.double().flatten() - exact) / exact).abs().max())

    assert worst(per_sample(exact, torch.ones(len(SIGMA), 1, dtype=torch.bfloat16))) <= 2**-8
    assert worst(scaling(SIGMA.bfloat16(), 0.5)) > 2**-8


def test_the_weighted_loss_is_one_number_per_sample():
    """Weights of shape (B, 1) would give (B, B): the product of two means, not the mean of products."""
    sigma, loss = torch.tensor([0.01, 0.3, 20.0]).double(), torch.tensor([1.0, 2.0, 4.0]).double()
    weighted = loss * edm_weight(sigma, 0.5)
    assert weighted.shape == (3,)
    by_hand = [v * (x * x + 0.25) / (x * 0.5) ** 2 for v, x in zip(loss.tolist(), sigma.tolist(), strict=True)]
    assert float(weighted.mean()) == pytest.approx(sum(by_hand) / 3, rel=1e-14)
    assert float(weighted.mean()) != pytest.approx(float(loss.mean() * edm_weight(sigma, 0.5).mean()), rel=0.1)
