"""FID, KID, precision and recall against closed forms, double loops and brute force."""

import math
import sys

import numpy as np
import pytest
import scipy.linalg
import torch

from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.image_quality import KID_SUBSETS, check_pixels, image_quality, samples_needed
from diffusionblocks.randomness import keyed_generator, seeded


def normal(*key: int | str, n: int = 64, f: int = 4) -> torch.Tensor:
    return torch.randn(n, f, generator=keyed_generator(*key), dtype=torch.float64)


def with_moments(x: torch.Tensor, mean: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """The samples, moved and mixed so that their own mean and covariance are exactly these."""
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(torch.cov(x.T)), (x - x.mean(0)).T, upper=False)
    return (torch.linalg.cholesky(covariance) @ white).T + mean


def frechet(mean_a: np.ndarray, cov_a: np.ndarray, mean_b: np.ndarray, cov_b: np.ndarray) -> float:
    root = scipy.linalg.sqrtm(cov_a @ cov_b).real
    return float(((mean_a - mean_b) ** 2).sum() + np.trace(cov_a + cov_b - 2 * root))


def test_fid_of_two_gaussians_is_the_closed_form():
    mean_a, mean_b = normal(0, "mean a", n=1)[0], normal(0, "mean b", n=1)[0]
    cov_a, cov_b = torch.cov(normal(0, "cov a").T), torch.cov((normal(0, "cov b") * 3).T)
    real = with_moments(normal(0, "real", n=200), mean_a, cov_a)
    fake = with_moments(normal(0, "fake", n=300), mean_b, cov_b)
    expected = frechet(mean_a.numpy(), cov_a.numpy(), mean_b.numpy(), cov_b.numpy())
    assert image_quality(real, fake)["fid"] == pytest.approx(expected, rel=1e-9)


def test_fid_of_float32_samples_is_that_of_numpy_moments():
    real, fake = normal(1, "real", n=500, f=16).float() * 2 + 30, normal(1, "fake", n=400, f=16).float() + 30
    a, b = real.double().numpy(), fake.double().numpy()
    expected = frechet(a.mean(0), np.cov(a.T), b.mean(0), np.cov(b.T))
    assert image_quality(real, fake)["fid"] == pytest.approx(expected, rel=1e-4)


def test_the_same_samples_are_at_distance_nought_and_all_inside():
    real = normal(2)
    result = image_quality(real, real.clone())
    assert set(result) == {"fid", "kid", "kid_std", "precision", "recall"}
    assert 0 <= result["fid"] < 1e-9
    assert (result["precision"], result["recall"]) == (1, 1)


def test_fid_of_a_shift_is_its_square():
    shift = torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=torch.float64)
    assert image_quality(normal(3), normal(3) + shift)["fid"] == pytest.approx(float(shift @ shift), rel=1e-9)


def test_features_that_are_always_nought_do_not_matter():
    """A ReLU may be dead for all images, so covariances may be singular."""
    real, fake = normal(4, "real"), normal(4, "fake")
    dead = torch.zeros(64, 3, dtype=torch.float64)
    with_dead = image_quality(torch.cat([real, dead], 1), torch.cat([fake, dead], 1))
    without = image_quality(real, fake)
    assert with_dead["fid"] == pytest.approx(without["fid"], abs=1e-6)
    assert (with_dead["precision"], with_dead["recall"]) == (without["precision"], without["recall"])


def squared_mmd(x: np.ndarray, y: np.ndarray) -> float:
    """The unbiased estimate with the kernel (a.b / F + 1)^3, one pair at a time."""
    m, f = x.shape
    total = 0.0
    for i in range(m):
        for j in range(m):
            if i != j:
                total += ((x[i] @ x[j] / f + 1) ** 3 + (y[i] @ y[j] / f + 1) ** 3) / (m * (m - 1))
            total -= 2 * (x[i] @ y[j] / f + 1) ** 3 / m**2
    return total


def test_kid_is_the_double_loop_over_the_same_subsets():
    real, fake = normal(5, "real", n=12, f=3), normal(5, "fake", n=10, f=3) + 0.5
    scores = []
    with seeded("cpu", 7, "kid subsets"):
        for _ in range(KID_SUBSETS):
            rows, others = torch.randperm(12)[:5], torch.randperm(10)[:5]
            scores.append(squared_mmd(real[rows].numpy(), fake[others].numpy()))
    result = image_quality(real, fake, seed=7)
    assert result["kid"] == pytest.approx(np.mean(scores), rel=1e-9)
    assert result["kid_std"] == pytest.approx(np.std(scores), rel=1e-9)


def test_kid_is_unbiased():
    """Over many pairs of sets of one distribution the mean is 0 within 3 of its standard errors; FID's is not."""
    results = [image_quality(normal(k, "a"), normal(k, "b")) for k in range(40)]
    kids, fids = (np.array([row[name] for row in results]) for name in ("kid", "fid"))
    assert abs(kids.mean()) < 3 * kids.std(ddof=1) / math.sqrt(len(kids))
    assert fids.mean() > 3 * fids.std(ddof=1) / math.sqrt(len(fids))


def test_the_seed_decides_the_subsets_and_torch_s_generator_is_left_alone():
    real, fake = normal(6, "real"), normal(6, "fake")
    before = torch.random.get_rng_state()
    first, again, other = (image_quality(real, fake, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert first == again
    assert first["kid"] != other["kid"]
    assert abs(first["kid"] - other["kid"]) < 4 * first["kid_std"] / math.sqrt(KID_SUBSETS) * math.sqrt(2)
    assert {k: first[k] for k in ("fid", "precision", "recall")} == {
        k: other[k] for k in ("fid", "precision", "recall")
    }


def brute_force(samples: np.ndarray, others: np.ndarray, k: int = 3) -> float:
    inside = 0
    for sample in samples:
        for i, other in enumerate(others):
            radius = sorted(np.linalg.norm(other - x) for j, x in enumerate(others) if j != i)[k - 1]
            if np.linalg.norm(sample - other) <= radius:
                inside += 1
                break
    return inside / len(samples)


@pytest.mark.parametrize("shift", [0.0, 1.0, 50.0])
def test_precision_and_recall_are_the_brute_force(shift):
    real, fake = normal(8, "real", n=40, f=3) + 100, normal(8, "fake", n=30, f=3) * 0.5 + 100 + shift
    result = image_quality(real, fake)
    assert result["precision"] == brute_force(fake.numpy(), real.numpy())
    assert result["recall"] == brute_force(real.numpy(), fake.numpy())
    # Narrower than the real ones: precise, with less recall; or nowhere near them.
    assert (shift < 50) == (result["precision"] > result["recall"] > 0)


def test_samples_of_one_mode_are_precise_and_have_no_recall():
    centres = torch.tensor([[-10.0], [10.0]], dtype=torch.float64)
    real = normal(9, "real", n=200, f=2) + centres.repeat_interleave(100, 0)
    result = image_quality(real, normal(9, "fake", n=200, f=2) + 10)
    assert result["precision"] > 0.9
    assert 0.4 < result["recall"] <= 0.5


def test_the_order_of_samples_does_not_matter():
    real, fake = normal(10, "real"), normal(10, "fake") + 0.3
    order = torch.randperm(64, generator=keyed_generator(10))
    one, two = image_quality(real, fake), image_quality(real[order], fake[order.flip(0)])
    assert two["fid"] == pytest.approx(one["fid"], rel=1e-9)
    assert (two["precision"], two["recall"]) == (one["precision"], one["recall"])
    # Other subsets of the same samples.
    assert abs(two["kid"] - one["kid"]) < 4 * one["kid_std"] / math.sqrt(KID_SUBSETS) * math.sqrt(2)


@pytest.mark.parametrize(
    ("real", "fake", "message"),
    [
        (torch.zeros(64, 4), torch.zeros(64, 5), "4 features a sample"),
        (torch.zeros(7, 4), torch.zeros(64, 4), "real samples=7: expected at least 8"),
        (torch.zeros(64, 4), torch.zeros(7, 4), "fake samples=7: expected at least 8"),
        (torch.zeros(64, 4), torch.full((64, 4), torch.nan), r"fake features\[row 0\]='not finite'"),
        (torch.zeros(64, 4, 1, 1), torch.zeros(64, 4), r"floats of shape \(N, F\)"),
        (torch.zeros(64, 4, dtype=torch.uint8), torch.zeros(64, 4), "extract features first"),
    ],
)
def test_features_that_cannot_be_compared_are_refused(real, fake, message):
    with pytest.raises(InputError, match=message):
        image_quality(real, fake)


def test_the_fewest_samples_are_enough():
    for features in (1, 2, 5):
        needed = samples_needed(features)
        result = image_quality(normal(11, "real", n=needed, f=features), normal(11, "fake", n=needed, f=features))
        assert all(math.isfinite(value) for value in result.values())
    assert samples_needed(64) == 128


def test_a_missing_torchmetrics_is_one_line(monkeypatch):
    for name in ("fid", "kid"):
        monkeypatch.setitem(sys.modules, f"torchmetrics.image.{name}", None)
    with pytest.raises(InputError, match=r"pip install 'diffusionblocks\[images\]'"):
        image_quality(normal(12), normal(12))


def test_pixels_are_bytes():
    check_pixels(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(InputError, match="uint8"):
        check_pixels(torch.zeros(2, 3, 8, 8))
    for shape in ((3, 8, 8), (2, 2, 8, 8), (0, 3, 8, 8)):
        with pytest.raises(InputError, match="shape"):
            check_pixels(torch.zeros(shape, dtype=torch.uint8))
