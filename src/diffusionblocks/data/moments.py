"""Mean and standard deviation of each channel of a training set, as a network's normalisation needs them."""

import torch
from torch import Tensor

from diffusionblocks.data.images import to_float
from diffusionblocks.data.latents import LatentSet
from diffusionblocks.data.lazy import ImageSource
from diffusionblocks.errors import InputError

CHUNK = 256


def mean_and_std(data: ImageSource | LatentSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per-channel mean and standard deviation over all rows and places, in float64, read in chunks.

    Args:
        data: images, which are taken in [-1, 1] as `to_float` gives them; or latents as they are.

    Returns:
        (means, standard deviations), C numbers each; the deviation is that of the population (divided by the count).

    Raises:
        InputError: a channel (counted from 0) without variance, or with values that are not finite.
    """
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    low, high = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    for rows in torch.arange(len(data)).split(CHUNK):
        values = _values(data, rows).double().transpose(0, 1).flatten(1)
        # Chan, Golub, LeVeque 1983: moments of parts joined without the cancellation of sum(x^2) - n mean^2.
        added, here = values.shape[1], values.mean(1)
        step = here - mean
        squares = squares + (values - here[:, None]).square().sum(1) + step**2 * (count * added / (count + added))
        mean = mean + step * (added / (count + added))
        count += added
        low, high = torch.minimum(low, values.amin(1)), torch.maximum(high, values.amax(1))
    for channel, (least, most) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        # NaN spreads to both, and is no number that a comparison holds for.
        if not -torch.inf < least <= most < torch.inf:
            raise InputError(f"channel {channel}", (least, most), "finite values", "find the rows that are not")
        if least == most:
            raise InputError(f"channel {channel}", least, "values that vary", "leave this channel out")
    return tuple(mean.tolist()), tuple((squares / count).sqrt().tolist())


def _values(data: ImageSource | LatentSet, rows: Tensor) -> Tensor:
    """float32, shape (n, C, h, w)."""
    return data.rows(rows) if isinstance(data, LatentSet) else to_float(data.pixels(rows))
