"""Batches for the trainer: any data set that gives the rows asked for can train a block."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diffusionblocks.data.augment import RandAugment, augment_batch
from diffusionblocks.data.images import ImageSet, to_float
from diffusionblocks.data.order import batch_rows
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
            keys = [(key_seed(seed, "augment", block), epoch, index) for epoch, index in rows]
            images = augment_batch(images, keys, self.flip, self.randaugment)
        return to_float(images), self.image_set.labels[index]


class BlockBatches(torch.utils.data.Dataset):
    """The batches of one block by number of the update, for a DataLoader with any number of workers."""

    def __init__(self, data: Batches, batch_size: int, seed: int, block: int):
        self.data, self.batch_size, self.seed, self.block = data, batch_size, seed, block

    def __getitem__(self, update: int) -> tuple[Tensor, Tensor]:
        rows = batch_rows(len(self.data), self.batch_size, update, self.seed, self.block)
        return self.data.batch(rows, self.seed, self.block)
