"""Order of the data by key: which samples batch number `update` of a block holds, without any state to store."""

import functools

import numpy as np

from diffusionblocks.randomness import key_seed


def batch_rows(num_samples: int, batch_size: int, update: int, seed: int, block: int) -> list[tuple[int, int]]:
    """The rows of one batch: (epoch, index) of each sample.

    The epochs of a block are permutations keyed by (seed, block, epoch), laid end to end and cut into batches, so every
    sample comes once an epoch, every batch is full, and any batch can be had without those before it.

    Args:
        num_samples: size of the data set.
        batch_size: samples of a batch; may exceed num_samples.
        update: number of the batch, from 0.
        seed, block: the key.
    """
    positions = range(update * batch_size, (update + 1) * batch_size)
    pairs = (divmod(position, num_samples) for position in positions)
    return [(epoch, int(_permutation(num_samples, seed, block, epoch)[offset])) for epoch, offset in pairs]


@functools.lru_cache(maxsize=32)
def _permutation(num_samples: int, seed: int, block: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(key_seed(seed, "order", block, epoch)).permutation(num_samples)
