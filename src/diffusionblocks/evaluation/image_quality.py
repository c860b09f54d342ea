"""How near generated images are to real ones, from features of both: FID, KID, improved precision and recall.

FID (Heusel et al. 2017) is the Frechet distance of two Gaussians with the features' means and covariances. It is biased
upward by few samples, so only values at equal numbers of samples compare. KID (Binkowski et al. 2018) is an unbiased
squared maximum mean discrepancy. Precision and recall (Kynkaanniemi et al. 2019) tell fidelity from variety.
"""

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.metrics import pairwise_distances_chunked
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from diffusionblocks.errors import InputError
from diffusionblocks.randomness import seeded

KID_SUBSETS = 100
KID_SUBSET_SIZE = 1000
NEIGHBOURS = 3
"""k of the precision and recall, as in the paper."""


class _AsTheyAre(nn.Identity):
    """What torchmetrics takes for a feature network: the features have been computed before.

    Args:
        num_features: F; torchmetrics reads it, and would otherwise probe with an image.
    """

    def __init__(self, num_features: int):
        super().__init__()
        self.num_features = num_features


def check_pixels(images: Tensor) -> None:
    """Refuse what is not a batch of 8-bit images: floats in 0..1 or -1..1 would be read as black.

    Args:
        images: uint8, shape (N, C, H, W) with N > 0 and C in {1, 3}.

    Raises:
        InputError: another dtype or shape.
    """
    if images.dtype != torch.uint8:
        todo = "scale to 0..255, round, clamp, and convert to 8 bit"
        raise InputError("images.dtype", images.dtype, "torch.uint8 (0..255)", todo)
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[1] not in (1, 3) or min(shape) < 1:
        raise InputError("images.shape", shape, "(N, C, H, W) with N > 0, C = 1 or 3", "give one batch, grey or RGB")


def samples_needed(num_features: int) -> int:
    """The fewest samples of either side that `image_quality` takes: twice the number of features F.

    The covariance of F features from N samples has rank N - 1 at most, and its small eigenvalues are far off until N is
    a good deal larger than F. At least 4, which precision and recall need for 3 neighbours.
    """
    return max(2 * num_features, NEIGHBOURS + 1)


def image_quality(real: Tensor, fake: Tensor, seed: int = 0) -> dict[str, float]:
    """FID, KID, precision and recall of generated images, from features of one extractor.

    Computed in float64 on the CPU. KID is the mean over 100 random subsets of min(1000, N // 2, M // 2) samples of each
    side; the subsets depend on the seed, the numbers of samples and their order. All else depends on neither.

    Args:
        real: features of real images, shape (N, F), finite.
        fake: features of generated images, shape (M, F), finite.
        seed: of KID's subsets.

    Returns:
        fid: squared distance in units of the features, 0 for the same mean and covariance.
        kid, kid_std: mean and standard deviation over subsets; the mean may be a little below 0.
        precision: share of the fake samples that lie among the real ones, 0..1.
        recall: share of the real samples that lie among the fake ones, 0..1.

    Raises:
        InputError: features of another shape on either side, fewer than 2 F samples, values that are not finite,
            torchmetrics missing.
    """
    _check_features(real, fake)
    real, fake = real.detach().cpu().double(), fake.detach().cpu().double()
    kid, kid_std = _kid(real, fake, seed)
    # The same for all of them, and distances lose fewer digits to rounding near the origin.
    centre = real.mean(dim=0)
    real_rows, fake_rows = (real - centre).numpy(), (fake - centre).numpy()
    return {
        "fid": _fid(real, fake),
        "kid": kid,
        "kid_std": kid_std,
        "precision": _share_inside(fake_rows, real_rows),
        "recall": _share_inside(real_rows, fake_rows),
    }


def _check_features(real: Tensor, fake: Tensor) -> None:
    for name, features in (("real", real), ("fake", fake)):
        shape = tuple(features.shape)
        if len(shape) != 2 or not features.is_floating_point() or shape[1] < 1:
            raise InputError(
                f"{name} features", (features.dtype, shape), "floats of shape (N, F)", "extract features first"
            )
    if real.shape[1] != fake.shape[1]:
        raise InputError(
            "fake features",
            tuple(fake.shape),
            f"{real.shape[1]} features a sample, as the real ones have",
            "take both from one extractor",
        )
    needed = samples_needed(real.shape[1])
    for name, features in (("real", real), ("fake", fake)):
        if len(features) < needed:
            raise InputError(
                f"{name} samples",
                len(features),
                f"at least {needed} (twice the {real.shape[1]} features, whose covariance FID estimates)",
                "give more images, or take an extractor of fewer features",
            )
        bad = torch.nonzero(~features.isfinite().all(dim=1)).flatten()
        if len(bad):
            raise InputError(
                f"{name} features[row {int(bad[0])}]",
                "not finite",
                "finite numbers",
                f"look at these images ({len(bad)} of {len(features)})",
            )


def _metric(module: str, name: str, **settings: Any) -> Any:
    """A metric of torchmetrics, of this process alone.

    Raises:
        InputError: torchmetrics is not installed.
    """
    import importlib

    try:
        metric_class = getattr(importlib.import_module(f"torchmetrics.image.{module}"), name)
    except ImportError as error:
        todo = "pip install 'diffusionblocks[images]'"
        raise InputError("torchmetrics", "not installed", "torchmetrics, for FID and KID", todo) from error
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*will save all extracted features in buffer")
        return metric_class(sync_on_compute=False, **settings)


def _fid(real: Tensor, fake: Tensor) -> float:
    metric = _metric("fid", "FrechetInceptionDistance", feature=_AsTheyAre(real.shape[1])).set_dtype(torch.float64)
    metric.update(real, real=True)
    metric.update(fake, real=False)
    # A distance is never negative; what is below 0 is rounding, at equal means and covariances.
    return max(0.0, float(metric.compute()))


def _kid(real: Tensor, fake: Tensor, seed: int) -> tuple[float, float]:
    # Half of a side at most: subsets that hold every sample would all be the same, with a deviation of 0.
    size = min(KID_SUBSET_SIZE, len(real) // 2, len(fake) // 2)
    identity = _AsTheyAre(real.shape[1])
    metric = _metric("kid", "KernelInceptionDistance", feature=identity, subsets=KID_SUBSETS, subset_size=size)
    metric.update(real, real=True)
    metric.update(fake, real=False)
    with seeded("cpu", seed, "kid subsets"):
        mean, deviation = metric.compute()
    return float(mean), float(deviation)


def _share_inside(samples: np.ndarray, others: np.ndarray) -> float:
    """The share of the samples inside a ball around one of the others that reaches to that one's k-th neighbour.

    Args:
        samples: shape (N, F).
        others: shape (M, F) with M > k.
    """
    # Without an argument a row is not its own neighbour. Trees do not help in so many dimensions.
    distances, _ = NearestNeighbors(n_neighbors=NEIGHBOURS, algorithm="brute").fit(others).kneighbors()
    radii = distances[:, -1]
    inside = pairwise_distances_chunked(samples, others, reduce_func=lambda rows, start: (rows <= radii).any(axis=1))
    return float(np.concatenate(list(inside)).mean())
