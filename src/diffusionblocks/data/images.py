"""Labelled images in memory (`ImageSet`), and the one rule by which any image file becomes a small uint8 tensor."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import track
from torch import Tensor

from diffusionblocks.errors import InputError


def check_labels(labels: Tensor, num_classes: int, source: str = "labels") -> None:
    """Refuse labels outside 0..num_classes-1.

    Args:
        labels: integers, shape (N,).
        num_classes: K.
        source: the file or column that the labels come from, for the error.

    Raises:
        InputError: names the first bad row (counted from 0), its label, and how many such rows there are.
    """
    rows = torch.nonzero((labels < 0) | (labels >= num_classes)).flatten()
    if len(rows):
        raise InputError(
            f"{source}[row {int(rows[0])}]",
            int(labels[rows[0]]),
            f"a label in 0..{num_classes - 1} ({num_classes} classes)",
            f"correct or remove such rows ({len(rows)} of {len(labels)})",
        )


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Square uint8 images with a label each.

    Args:
        images: uint8, shape (N, C, H, W) with N > 0, C in {1, 3} and H = W.
        labels: int64, shape (N,), each in 0..K-1.
        classes: the K class names; a class may have no image.

    Raises:
        InputError: another dtype or shape, lengths that differ, no image, no class, a label outside 0..K-1 (by row).
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self):
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8:
            raise InputError("images.dtype", images.dtype, "torch.uint8 (0..255)", "convert the images to 8 bit")
        shape = tuple(images.shape)
        if len(shape) != 4 or shape[0] < 1 or shape[1] not in (1, 3) or shape[2] != shape[3] or shape[2] < 1:
            raise InputError(
                "images.shape", shape, "(N, C, H, W) with N > 0, C = 1 or 3, H = W > 0", "crop to squares, grey or RGB"
            )
        if labels.dtype != torch.int64:
            raise InputError("labels.dtype", labels.dtype, "torch.int64", "convert the labels")
        if tuple(labels.shape) != shape[:1]:
            raise InputError("labels.shape", tuple(labels.shape), f"({shape[0]},), as many as images", "match the two")
        if not self.classes:
            raise InputError("classes", self.classes, "at least one class name", "name the classes")
        check_labels(labels, self.num_classes)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """K, the number of class names, whether or not each has an image."""
        return len(self.classes)

    @property
    def image_size(self) -> int:
        """Height = width, in pixels."""
        return self.images.shape[-1]

    @property
    def num_channels(self) -> int:
        """1 (grey) or 3 (RGB)."""
        return self.images.shape[1]

    def pixels(self, index: Tensor) -> Tensor:
        """The images at these rows, int64 (n,): uint8, shape (n, C, H, W)."""
        return self.images[index]

    def fingerprint(self) -> str:
        """SHA-256, in hex, of pixels, labels and classes."""
        digest = hashlib.sha256(repr((self.classes, tuple(self.images.shape))).encode())
        for tensor in (self.images, self.labels):
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def subset(self, indices: Sequence[int] | np.ndarray | Tensor) -> "ImageSet":
        """The images at these rows, copied, in the order given (a row may come twice).

        Args:
            indices: integers in 0..N-1, shape (n,) with n > 0.

        Raises:
            InputError: no index, not integers, or one out of range.
        """
        index = torch.as_tensor(indices)
        if index.ndim != 1 or not len(index):
            raise InputError("indices.shape", tuple(index.shape), "(n,) with n > 0", "choose at least one row")
        if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
            raise InputError("indices.dtype", index.dtype, "integers", "give row numbers, not a mask")
        index = index.long()
        outside = index[(index < 0) | (index >= len(self))]
        if len(outside):
            raise InputError("indices", int(outside[0]), f"rows in 0..{len(self) - 1}", "choose existing rows")
        return ImageSet(self.images[index], self.labels[index], self.classes)


def check_trainable(image_set: ImageSet) -> tuple[str, ...]:
    """Refuse a training set that holds a single class; tell which classes have no sample.

    Returns:
        The names of the classes without a training image, in class order (the caller shows them); often empty.

    Raises:
        InputError: fewer than two classes have an image.
    """
    absent = absent_classes(image_set.labels, image_set.classes)
    present = [name for name in image_set.classes if name not in absent]
    if len(present) < 2:
        raise InputError(
            "training labels",
            present[0],
            "at least two classes with images (one class only: a classifier has nothing to learn)",
            "add images of another class",
        )
    return absent


def absent_classes(labels: Tensor, classes: Sequence[str]) -> tuple[str, ...]:
    """Names of the classes of which no label (N,) is, in class order."""
    counts = torch.bincount(labels, minlength=len(classes)).tolist()
    return tuple(name for name, count in zip(classes, counts, strict=True) if not count)


def split_rows(labels: np.ndarray, split: str, fraction: float, seed: int) -> np.ndarray:
    """Rows of a split, ascending: of each class of the training set, round(fraction * count) go to validation.

    Args:
        labels: int, shape (N,).
        split: "train" or "validation"; "test" is every row (of what the caller read as test set).
        fraction: of each class, that goes to validation.
        seed: chooses them.

    Raises:
        InputError: the set is so small that a split would be empty.
    """
    rng = np.random.default_rng(seed)
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        held_out[rows[: int(fraction * len(rows) + 0.5)]] = True
    rows = np.flatnonzero({"train": ~held_out, "validation": held_out, "test": np.ones_like(held_out)}[split])
    if not len(rows):
        raise InputError("images", len(labels), f"enough for a {split} split", "add images to each class")
    return rows


def to_float(images_uint8: Tensor) -> Tensor:
    """x / 127.5 - 1: uint8 0..255 of any shape -> float32 in [-1, 1] of the same shape.

    Raises:
        InputError: the images are not uint8 (floats would be scaled twice).
    """
    if images_uint8.dtype != torch.uint8:
        raise InputError("images.dtype", images_uint8.dtype, "torch.uint8 (0..255)", "pass unscaled 8-bit images")
    return images_uint8.to(torch.float32) / 127.5 - 1


def to_uint8(images: Tensor) -> Tensor:
    """The inverse of `to_float`: floats of any shape, clamped to [-1, 1], -> uint8 (x + 1) * 127.5, rounded.

    Raises:
        InputError: the images are not floats, or hold NaN.
    """
    if not images.is_floating_point():
        raise InputError("images.dtype", images.dtype, "floats in [-1, 1]", "uint8 images are pixels already")
    if bool(images.isnan().any()):
        raise InputError("images", "NaN", "numbers", "look for the step that overflowed")
    return ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def _deep_grey(image: Image.Image, invert: bool) -> np.ndarray:
    """Grey of more than 8 bits -> uint8 (H, W): integers are 16-bit, x / 257 rounded; floats are 0..1, x * 255."""
    values = np.asarray(image)
    top = 1 if image.mode == "F" else 65535
    # Written so that NaN fails too.
    if not (values.min() >= 0 and values.max() <= top):
        raise InputError(
            f"pixels of mode {image.mode}",
            (values.min().item(), values.max().item()),
            f"values in 0..{top}",
            "save the image with 8 or 16 bits per channel",
        )
    grey = np.rint(values * (255.0 / top)).astype(np.uint8)
    grey = 255 - grey if invert else grey
    key = image.info.get("transparency")
    return np.where(values == key, 0, grey).astype(np.uint8) if isinstance(key, int) else grey


def to_pixels(image: Image.Image, channels: int, invert: bool = False) -> np.ndarray:
    """Any Pillow image -> 8-bit grey or RGB pixels, by the rule that `read_image` states.

    Args:
        image: of any mode that Pillow decodes.
        channels: 1 (grey: ITU-R 601 luma, as in Pillow) or 3 (RGB).
        invert: x -> 255 - x, before what is transparent becomes black.

    Returns:
        uint8, shape (H, W) for 1 channel, (H, W, 3) for 3.

    Raises:
        InputError: `channels` is not 1 or 3; pixels of mode I outside 0..65535 or of mode F outside 0..1.
    """
    if channels not in (1, 3):
        raise InputError("channels", channels, "1 (grey) or 3 (RGB)", "choose one of them")
    if image.mode == "F" or image.mode.startswith("I"):
        opaque = Image.fromarray(_deep_grey(image, invert))
    else:
        rgba = np.asarray(image.convert("RGBA")).astype(np.uint16)
        colour, alpha = rgba[..., :3], rgba[..., 3:]
        colour = 255 - colour if invert else colour
        opaque = Image.fromarray(((colour * alpha + 127) // 255).astype(np.uint8))
    return np.asarray(opaque.convert("L" if channels == 1 else "RGB"))


def read_image(path: str | Path, size: int, channels: int, invert: bool = False) -> Tensor:
    """A user's image file as the network's input, by one declared rule.

    In this order: the first frame; turned as its EXIF orientation says; cropped to the centred square of the shorter
    side; brought to 8 bits; inverted if asked; laid over black where transparent; made grey or RGB; resized by
    Pillow's bicubic filter (which averages over source pixels when it reduces).

    Depth: 16-bit grey (modes I;16 and I) is x / 257, rounded, so 65535 -> 255; float grey (mode F) must lie in 0..1
    and is x * 255, rounded; 16-bit colour is read by Pillow as its high byte. Palettes, CMYK, YCbCr and bilevel are
    converted to RGB or grey first. With `invert` what is transparent is still black: dark ink on a transparent or a
    white ground becomes light ink on black, as in MNIST.

    Args:
        path: the file.
        size: height = width of the result, pixels.
        channels: 1 (grey) or 3 (RGB).
        invert: x -> 255 - x.

    Returns:
        uint8, shape (channels, size, size).

    Raises:
        InputError: names the path: no such file, a folder, not an image, a damaged or truncated one, values beyond the
            depth's range. Also a size below 1, or channels other than 1 and 3.
    """
    check_size(size, channels)
    if not Path(path).is_file():
        found = "it is a folder" if Path(path).is_dir() else "there is no such file"
        raise InputError("image", str(path), "an image file", f"{found}; give the path of one image")
    return read_opened(lambda: Image.open(path), str(path), size, channels, invert)


def check_size(size: int, channels: int) -> None:
    """Refuse a size below 1 pixel, and channels other than 1 and 3."""
    if size < 1:
        raise InputError("size", size, "at least 1 pixel", "choose the model's image size")
    if channels not in (1, 3):
        raise InputError("channels", channels, "1 (grey) or 3 (RGB)", "choose one of them")


def read_opened(load: Callable[[], Image.Image], name: str, size: int, channels: int, invert: bool = False) -> Tensor:
    """The rule of `read_image` for an image from anywhere: `load` opens it, `name` is for the error."""
    try:
        with load() as opened:
            image = ImageOps.exif_transpose(opened)
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            pixels = to_pixels(image.crop((left, top, left + side, top + side)), channels, invert)
    except InputError as error:
        raise InputError(f"image {name}: {error.setting}", error.value, error.expected, error.todo) from error
    except Exception as error:
        # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more for a damaged file.
        reason = f"Pillow says: {error}" if str(error) else f"Pillow raised {type(error).__name__}"
        raise InputError("image", name, "a complete image file that Pillow can read", reason) from error
    resized = np.array(Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC))
    return torch.from_numpy(resized.reshape(size, size, channels)).permute(2, 0, 1).contiguous()


def decode_images(
    count: int, load: Callable[[int], Image.Image], name: Callable[[int], str], size: int, channels: int
) -> Tensor:
    """Many images of one size into one tensor, by `to_pixels`, with a progress bar on stderr for more than 2000.

    Args:
        count: number of images.
        load: opens image i of 0..count-1.
        name: where image i comes from, for errors.
        size: height = width that each must have, pixels.
        channels: 1 (grey) or 3 (RGB).

    Returns:
        uint8, shape (count, channels, size, size).

    Raises:
        InputError: names the image: it cannot be decoded, or has another size.
    """
    result = torch.empty(count, channels, size, size, dtype=torch.uint8)
    bar = {"description": "Decoding images", "console": Console(stderr=True), "disable": count <= 2000}
    for i in track(range(count), **bar):
        try:
            with load(i) as image:
                found, pixels = image.size, to_pixels(image, channels)
        except Exception as error:
            # As in read_image; a missing image (None) ends here too.
            raise InputError("image", name(i), "a complete image", f"{type(error).__name__}: {error}") from error
        if found != (size, size):
            raise InputError(f"image {name(i)}", found, f"{size}x{size} pixels", "use images of one size")
        result[i] = torch.from_numpy(pixels.reshape(size, size, channels).copy()).permute(2, 0, 1)
    return result
