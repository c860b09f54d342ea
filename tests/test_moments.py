"""Moments of a training set against NumPy's over all values at once."""

import dataclasses

import numpy as np
import pytest
import torch

from diffusionblocks.data.images import ImageSet
from diffusionblocks.data.latents import LatentSet
from diffusionblocks.data.moments import mean_and_std
from diffusionblocks.errors import InputError
from diffusionblocks.randomness import keyed_generator


class Rows(LatentSet):
    """Latents in memory."""

    def __init__(self, values: torch.Tensor):
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        return self.values[index]


def image_set(count: int, channels: int = 3) -> ImageSet:
    draw = torch.rand(count, channels, 5, 5, generator=keyed_generator(count, "moments"))
    scale = torch.tensor([255.0, 90.0, 3.0])[:channels, None, None]
    return ImageSet((draw * scale).to(torch.uint8), torch.zeros(count, dtype=torch.int64), ("a",))


@pytest.mark.parametrize("count", [1, 255, 256, 257, 700])
@pytest.mark.parametrize("channels", [1, 3])
def test_images(count, channels):
    data = image_set(count, channels)
    mean, std = mean_and_std(data)
    values = data.images.numpy().astype(np.float64) / 127.5 - 1
    np.testing.assert_allclose(mean, values.mean((0, 2, 3)), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(std, values.std((0, 2, 3)), rtol=1e-6)
    assert {type(number) for number in (*mean, *std)} == {float}


def test_latents_far_from_zero():
    """Where the sum of squares less the square of the sum would lose every digit in float32."""
    values = torch.randn(600, 4, 3, 3, generator=keyed_generator(0, "latents"))
    values = (
        values * torch.tensor([1.0, 0.01, 5.0, 1.0])[:, None, None] + torch.tensor([0, 1e3, -4, 1e4])[:, None, None]
    )
    mean, std = mean_and_std(Rows(values))
    np.testing.assert_allclose(mean, values.double().mean((0, 2, 3)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(std, values.double().std((0, 2, 3), correction=0), rtol=1e-9)


def test_channels_that_cannot_be_normalised():
    data = image_set(300)
    constant = data.images.clone()
    constant[:, 1] = 77
    with pytest.raises(InputError, match=r"channel 1=-0\.39.*: expected values that vary"):
        mean_and_std(dataclasses.replace(data, images=constant))
    constant[299, 1, 4, 4] = 78
    mean_and_std(dataclasses.replace(data, images=constant))
    for bad in (torch.nan, torch.inf):
        values = torch.randn(300, 3, 2, 2)
        values[280, 2, 1, 1] = bad
        with pytest.raises(InputError, match=r"channel 2=.*: expected finite values"):
            mean_and_std(Rows(values))
