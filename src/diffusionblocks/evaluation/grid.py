"""Many images as one: rows and columns with a thin gap, as a PNG."""

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

GAP = 2
WANTED = 56
"""Pixels that a small image is enlarged to at least, by whole numbers, so that it can be looked at."""


def picture(image: Tensor) -> Image.Image:
    """One uint8 image (C, H, W) of 1 or 3 channels."""
    return Image.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy())


def write_grid(images: Tensor, path: Path, columns: int | None = None) -> Path:
    """Write uint8 images (N, C, H, W) as one PNG, row by row.

    Args:
        images: the images.
        path: file to write.
        columns: images in a row; None: about as many as there are rows.
    """
    count, channels, height, width = images.shape
    columns = min(count, columns or math.ceil(math.sqrt(count)))
    rows, times = math.ceil(count / columns), math.ceil(WANTED / max(height, width))
    images = images.repeat_interleave(times, 2).repeat_interleave(times, 3)
    height, width = height * times, width * times
    sheet = torch.full((channels, rows * (height + GAP) - GAP, columns * (width + GAP) - GAP), 255, dtype=torch.uint8)
    for number, image in enumerate(images):
        top, left = (number // columns) * (height + GAP), (number % columns) * (width + GAP)
        sheet[:, top : top + height, left : left + width] = image
    picture(sheet).save(path, format="PNG", optimize=True)
    return path


def read_picture(path: Path) -> Tensor:
    """A PNG back as uint8 (C, H, W)."""
    pixels = torch.from_numpy(np.array(Image.open(path)))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)
