"""Labelled images that stay where they are: each is read when a batch asks for it."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from diffusionblocks.data.images import ImageSet, check_labels, check_size
from diffusionblocks.errors import InputError


class ImageSource(Protocol):
    """What `ImageSet` (in memory) and `LazyImages` (on the disk) have in common."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> Tensor:
        """int64, shape (N,)."""
        ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def image_size(self) -> int:
        """Height = width, in pixels."""
        ...

    @property
    def num_channels(self) -> int:
        """1 (grey) or 3 (RGB)."""
        ...

    def pixels(self, index: Tensor) -> Tensor:
        """The images at these rows, int64 (n,): uint8, shape (n, C, H, W)."""
        ...

    def fingerprint(self) -> str:
        """SHA-256, in hex, of what the images and labels are."""
        ...


class Items(Protocol):
    """Where the images of a `LazyImages` come from; may be called from several threads."""

    def read(self, row: int, size: int, channels: int) -> Tensor:
        """Image `row` by the rule of `read_image`: uint8, shape (channels, size, size)."""
        ...

    def identity(self, row: int) -> str:
        """What would change if image `row` were another one."""
        ...


@dataclass(frozen=True, eq=False)
class LazyImages:
    """Images read anew for each batch, by several threads, so that a set need not fit into memory.

    Args:
        labels: int64, shape (N,) with N > 0, each in 0..K-1.
        classes: the K class names.
        image_size: height = width that the images are brought to, pixels.
        num_channels: 1 (grey) or 3 (RGB).
        items: reads them.

    Raises:
        InputError: no image; a size, a number of channels or a label that cannot be.
    """

    labels: Tensor
    classes: tuple[str, ...]
    image_size: int
    num_channels: int
    items: Items

    def __post_init__(self):
        check_size(self.image_size, self.num_channels)
        if not len(self.labels):
            raise InputError("images", 0, "at least one image", "add images")
        check_labels(self.labels, self.num_classes)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """K, the number of class names, whether or not each has an image."""
        return len(self.classes)

    def pixels(self, index: Tensor) -> Tensor:
        """The images at these rows, int64 (n,) with n > 0: uint8, shape (n, C, H, W).

        Raises:
            InputError: names the image that cannot be read.
        """
        # Pillow decodes and resizes without the interpreter's lock.
        with ThreadPoolExecutor() as pool:
            return torch.stack(list(pool.map(self._read, index.tolist())))

    def _read(self, row: int) -> Tensor:
        return self.items.read(row, self.image_size, self.num_channels)

    def fingerprint(self) -> str:
        """SHA-256, in hex, of every image's identity, and of labels, classes, size and channels."""
        digest = hashlib.sha256(repr((self.classes, self.image_size, self.num_channels)).encode())
        for row, label in enumerate(self.labels.tolist()):
            digest.update(f"{label} {self.items.identity(row)}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def load(self) -> ImageSet:
        """All images in memory, with a progress bar on stderr for more than 2000.

        Raises:
            InputError: names the image that cannot be read.
        """
        images = torch.empty(len(self), self.num_channels, self.image_size, self.image_size, dtype=torch.uint8)
        chunks: Sequence[Tensor] = torch.arange(len(self)).split(256)
        bar = {"description": "Decoding images", "console": Console(stderr=True), "disable": len(self) <= 2000}
        for rows in track(chunks, **bar):
            images[rows] = self.pixels(rows)
        return ImageSet(images, self.labels, self.classes)
