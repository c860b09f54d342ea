"""Random horizontal flips and RandAugment on Pillow; a sample's result depends on its key and on nothing else."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from diffusionblocks.errors import InputError

Op = Literal[
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
]
OPS: tuple[Op, ...] = get_args(Op)


@dataclass(frozen=True)
class RandAugment:
    """RandAugment: `num_ops` operations, drawn uniformly with replacement, all at one magnitude.

    Cubuk, Zoph, Shlens, Le 2020, "RandAugment: Practical automated data augmentation with a reduced search space",
    arXiv:1909.13719, section 3: N is `num_ops`, M is `magnitude`; `OPS` are its 14 transformations.

    Args:
        num_ops: operations per image, at least 1.
        magnitude: 0..num_bins-1; the strength is magnitude / (num_bins - 1) of each operation's range.
        num_bins: number of magnitudes, at least 2.

    Raises:
        InputError: a value outside these ranges.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_bins: int = 31

    def __post_init__(self):
        if self.num_ops < 1:
            raise InputError("randaugment.num_ops", self.num_ops, "at least 1", "use no RandAugment for none")
        if self.num_bins < 2:
            raise InputError("randaugment.num_bins", self.num_bins, "at least 2", "31 is usual")
        if not 0 <= self.magnitude < self.num_bins:
            raise InputError(
                "randaugment.magnitude", self.magnitude, f"0..{self.num_bins - 1} (num_bins - 1)", "9 of 31 is usual"
            )

    @property
    def strength(self) -> float:
        """The magnitude as a fraction of each operation's range, 0..1."""
        return self.magnitude / (self.num_bins - 1)


def draw_ops(rng: np.random.Generator, randaugment: RandAugment) -> list[tuple[Op, int]]:
    """Draws the operations for one image, each with a sign +1 or -1, all independent and uniform."""
    chosen = rng.integers(len(OPS), size=randaugment.num_ops)
    signs = 2 * rng.integers(2, size=randaugment.num_ops) - 1
    return [(OPS[index], int(sign)) for index, sign in zip(chosen, signs, strict=True)]


def apply_op(image: Image.Image, op: Op, strength: float, sign: int = 1) -> Image.Image:
    """One operation at `strength` s, a fraction 0..1 of its range.

    Ranges are those of AutoAugment (Cubuk et al. 2019, arXiv:1805.09501, table 6) in the form usual for RandAugment,
    where a larger s always changes the image more and s = 0 not at all: shear 0.3 s; translation 150/331 s of the side
    in whole pixels (rounded towards 0); rotation 30 s degrees; the enhancement factor 1 +- 0.9 s; posterize to 8 - 4 s
    bits, rounded; solarize from 256 (1 - s) up, rounded. `sign` turns the first three and the enhancements round.
    AutoContrast and Equalize have no range, so they act at s = 0 too (Pillow's Equalize leaves pictures of fewer than
    256 pixels as they are). Pixels from outside are black, sampling is by the nearest pixel.

    Args:
        image: Pillow image of mode L or RGB. Color leaves a grey image as it is.
        op: one of `OPS`.
        strength: s.
        sign: +1 or -1.

    Returns:
        A Pillow image of the same mode and size.
    """
    signed, (width, height) = sign * strength, image.size
    match op:
        case "Identity":
            return image
        case "ShearX":
            return _affine(image, (1, 0.3 * signed, 0, 0, 1, 0))
        case "ShearY":
            return _affine(image, (1, 0, 0, 0.3 * signed, 1, 0))
        case "TranslateX":
            return _affine(image, (1, 0, -math.trunc(150 / 331 * width * signed), 0, 1, 0))
        case "TranslateY":
            return _affine(image, (1, 0, 0, 0, 1, -math.trunc(150 / 331 * height * signed)))
        case "Rotate":
            return image.rotate(30 * signed, Image.Resampling.NEAREST)
        case "Brightness":
            return ImageEnhance.Brightness(image).enhance(1 + 0.9 * signed)
        case "Color":
            return image if image.mode == "L" else ImageEnhance.Color(image).enhance(1 + 0.9 * signed)
        case "Contrast":
            return ImageEnhance.Contrast(image).enhance(1 + 0.9 * signed)
        case "Sharpness":
            return ImageEnhance.Sharpness(image).enhance(1 + 0.9 * signed)
        case "Posterize":
            return ImageOps.posterize(image, 8 - round(4 * strength))
        case "Solarize":
            return ImageOps.solarize(image, round(256 * (1 - strength)))
        case "AutoContrast":
            return ImageOps.autocontrast(image)
        case "Equalize":
            return ImageOps.equalize(image)


def _affine(image: Image.Image, inverse: tuple[float, ...]) -> Image.Image:
    """Pixel (x, y) of the result is pixel (a x + b y + c, d x + e y + f) of the image, or black."""
    return image.transform(image.size, Image.Transform.AFFINE, inverse, Image.Resampling.NEAREST)


def augment(
    images_uint8: Tensor, rng: np.random.Generator, flip: bool = False, randaugment: RandAugment | None = None
) -> Tensor:
    """A random horizontal flip (probability 1/2), then RandAugment, of one image.

    Args:
        images_uint8: one image, uint8, shape (C, H, W), C = 1 or 3; left unchanged.
        rng: all randomness comes from here. The flip's coin is drawn even without `flip`, so that switching flips off
            leaves the operations as they were.
        flip: whether to flip.
        randaugment: None for none.

    Returns:
        uint8, shape (C, H, W), a new tensor on the CPU.

    Raises:
        InputError: another dtype or shape.
    """
    _check(images_uint8, 3, "(C, H, W)")
    coin = rng.random() < 0.5
    flipped = images_uint8.flip(-1) if flip and coin else images_uint8.clone()
    if randaugment is None:
        return flipped
    channels, height, width = flipped.shape
    pixels = flipped.permute(1, 2, 0).cpu().numpy()
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels))
    for op, sign in draw_ops(rng, randaugment):
        image = apply_op(image, op, randaugment.strength, sign)
    result = torch.from_numpy(np.array(image).reshape(height, width, channels))
    return result.permute(2, 0, 1).contiguous()


def augment_batch(
    images: Tensor, keys: Sequence[tuple[int, ...]], flip: bool = False, randaugment: RandAugment | None = None
) -> Tensor:
    """`augment` of each image with a generator of its own, so that batching, order and workers do not matter.

    Args:
        images: uint8, shape (B, C, H, W), C = 1 or 3; left unchanged.
        keys: B keys of integers >= 0, all of one length: (seed, block, epoch, index), say. (NumPy takes a key with
            zeros appended for the same key.)
        flip: whether to flip each image with probability 1/2.
        randaugment: None for none.

    Returns:
        uint8, shape (B, C, H, W), a new tensor on the CPU.

    Raises:
        InputError: another dtype or shape, another number of keys, keys that are empty, negative or of unequal length.
    """
    _check(images, 4, "(B, C, H, W)")
    if len(keys) != len(images):
        raise InputError("keys", f"{len(keys)} keys", f"{len(images)}, one per image", "give each image its key")
    for key in keys:
        if not key or len(key) != len(keys[0]) or any(part < 0 for part in key):
            raise InputError(
                "keys", key, "integers >= 0, as many in each key", "use (seed, block, epoch, index) for each image"
            )
    result = torch.empty(images.shape, dtype=torch.uint8)
    for row, key in enumerate(keys):
        result[row] = augment(images[row], np.random.default_rng(key), flip, randaugment)
    return result


def _check(images: Tensor, ndim: int, shape: str) -> None:
    if images.dtype != torch.uint8:
        raise InputError("images.dtype", images.dtype, "torch.uint8 (0..255)", "augment before scaling to floats")
    if images.ndim != ndim or images.shape[-3] not in (1, 3):
        raise InputError("images.shape", tuple(images.shape), f"{shape} with C = 1 or 3", "use grey or RGB images")
