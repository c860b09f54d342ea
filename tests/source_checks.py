"""What the tests of data sets share: a refusal in one line, rows as bytes, a picture of one colour."""

import pytest
import torch
from PIL import Image

from diffusionblocks.data.images import ImageSet
from diffusionblocks.data.sources import load_images
from diffusionblocks.errors import InputError

SPLITS = ("train", "validation", "test")


def refused(fragment: str, *arguments, **keywords) -> str:
    """The one line of the refusal, which must contain `fragment`."""
    with pytest.raises(InputError) as caught:
        load_images(*arguments, **keywords)
    line = str(caught.value)
    assert fragment in line
    assert "\n" not in line
    return line


def rows_of(images: torch.Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


def pairs_of(part: ImageSet) -> list[tuple[bytes, int]]:
    return list(zip(rows_of(part.images), part.labels.tolist(), strict=True))


def picture(value: int, size: int = 64, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (size, size), (value,) * 3 if mode == "RGB" else value)
