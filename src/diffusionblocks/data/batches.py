"""Batches for the trainer: any data set that gives the rows asked for can train a block."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diffusionblocks.data.augment import RandAugment, augment_batch
from diffusionblocks.data.images import ImageSet, to_float
from diffusionblocks.data.latents import LatentSet
from diffusionblocks.data.lazy import ImageSource
from diffusionblocks.data.order import batch_rows
from diffusionblocks.data.text import TokenSet
from diffusionblocks.marks import MASK, PAD, before
from diffusionblocks.randomness import key_seed


class Batches(Protocol):
    """A data set as the trainer sees it."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def batch(self, rows: Sequence[tuple[int, int]], seed: int, block: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the rows (epoch, index); seed and block key any augmentation."""
        ...


@dataclass(frozen=True)
class TensorBatches:
    """Inputs x (N, ...) and targets y (N, ...) in memory, as they are."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, rows: Sequence[tuple[int, int]], seed: int, block: int) -> tuple[Tensor, Tensor]:
        index = torch.tensor([index for _, index in rows])
        return self.x[index], self.y[index]


@dataclass(frozen=True)
class ImageBatches:
    """Images in [-1, 1] with their labels; flip and RandAugment are keyed by (seed, block, epoch, index)."""

    image_set: ImageSet
    flip: bool = False
    randaugment: RandAugment | None = None

    def __len__(self) -> int:
        return len(self.image_set)

    def batch(self, rows: Sequence[tuple[int, int]], seed: int, block: int) -> tuple[Tensor, Tensor]:
        index = torch.tensor([index for _, index in rows])
        images = self.image_set.images[index]
        if self.flip or self.randaugment is not None:
            images = augment_batch(images, _augment_keys(rows, seed, block), self.flip, self.randaugment)
        return to_float(images), self.image_set.labels[index]


@dataclass(frozen=True)
class GenerationBatches:
    """Labels (n,) as inputs and images in [-1, 1], float32 (n, C, H, W), as targets: to generate an image of a class.

    Flips are keyed as in `ImageBatches`, so both see the same images for the same (seed, block, epoch, index).
    """

    image_set: ImageSource
    flip: bool = False

    def __len__(self) -> int:
        return len(self.image_set)

    def batch(self, rows: Sequence[tuple[int, int]], seed: int, block: int) -> tuple[Tensor, Tensor]:
        index = torch.tensor([index for _, index in rows])
        images = self.image_set.pixels(index)
        if self.flip:
            images = augment_batch(images, _augment_keys(rows, seed, block), flip=True)
        return self.image_set.labels[index], to_float(images)


@dataclass(frozen=True)
class LatentBatches:
    """Labels (n,) as inputs and latents, float32 (n, C, h, w), as targets; latents are not augmented."""

    latent_set: LatentSet

    def __len__(self) -> int:
        return len(self.latent_set)

    def batch(self, rows: Sequence[tuple[int, int]], seed: int, block: int) -> tuple[Tensor, Tensor]:
        index = torch.tensor([index for _, index in rows])
        return self.latent_set.labels[index], self.latent_set.rows(index)


@dataclass(frozen=True)
class TextBatches:
    """Tokens, int64 (n, seq_len), as targets; inputs of the same shape say that each is to be found, or is padding."""

    token_set: TokenSet

    def __len__(self) -> int:
        return len(self.token_set)

    def batch(self, rows: Sequence[tuple[int, int]], seed: int, block: int) -> tuple[Tensor, Tensor]:
        tokens, valid = self.token_set.rows(torch.tensor([index for _, index in rows]))
        return torch.where(valid, MASK, PAD), tokens


@dataclass(frozen=True)
class NextTokenBatches:
    """What is before each token of a window as inputs, and the tokens as targets, int64 (n, seq_len): see `before`."""

    token_set: TokenSet

    def __len__(self) -> int:
        return len(self.token_set)

    def batch(self, rows: Sequence[tuple[int, int]], seed: int, block: int) -> tuple[Tensor, Tensor]:
        return before(*self.token_set.rows(torch.tensor([index for _, index in rows])))


def _augment_keys(rows: Sequence[tuple[int, int]], seed: int, block: int) -> list[tuple[int, int, int]]:
    """A key for each (epoch, index)."""
    return [(key_seed(seed, "augment", block), epoch, index) for epoch, index in rows]


class BlockBatches(torch.utils.data.Dataset):
    """The batches of one block by number of the update, for a DataLoader with any number of workers."""

    def __init__(self, data: Batches, batch_size: int, seed: int, block: int):
        self.data, self.batch_size, self.seed, self.block = data, batch_size, seed, block

    def __getitem__(self, update: int) -> tuple[Tensor, Tensor]:
        rows = batch_rows(len(self.data), self.batch_size, update, self.seed, self.block)
        return self.data.batch(rows, self.seed, self.block)
