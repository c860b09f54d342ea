"""Frozen tables of target embeddings for discrete targets: centred, unit-norm, the same for every block.

Blocks that never talk can only share a table that does not learn. Centred, so that z = 0 is its mean and says nothing.
"""

import torch
from torch import Tensor
from torch.nn import functional

from diffusionblocks.errors import InputError
from diffusionblocks.randomness import keyed_generator


def simplex_table(num_classes: int) -> Tensor:
    """The regular simplex: K unit vectors in K - 1 dimensions, pairwise cosine -1/(K - 1), the farthest apart there is.

    Made from Helmert's contrasts, in closed form, so every machine builds the same bits.

    Returns:
        (K, K - 1) float32.
    """
    _check_classes(num_classes)
    table = torch.zeros(num_classes, num_classes - 1, dtype=torch.float64)
    for j in range(1, num_classes):
        table[:j, j - 1] = 1.0
        table[j, j - 1] = -float(j)
        table[:, j - 1] /= (j * (j + 1)) ** 0.5
    return (table * (num_classes / (num_classes - 1)) ** 0.5).float()


def random_table(num_classes: int, dim: int, seed: int) -> Tensor:
    """K random unit vectors in `dim` dimensions, centred: centring and normalising in turn until both hold.

    Returns:
        (K, dim) float32.

    Raises:
        InputError: a width too small for that (3 classes in 1 dimension).
    """
    _check_classes(num_classes)
    return centred_unit(torch.randn(num_classes, dim, generator=keyed_generator(seed, "targets"), dtype=torch.float64))


def centred_unit(table: Tensor) -> Tensor:
    """The rows (K, dim) as unit vectors whose mean is 0: centred and normalised in turn until both hold.

    Args:
        table: vectors in general, such as the embeddings of a trained model.

    Returns:
        (K, dim) float32.

    Raises:
        InputError: vectors that cannot be (3 in 1 dimension; two that are the same as their mean).
    """
    table = table.double()
    for _ in range(1000):
        table = functional.normalize(table - table.mean(dim=0), dim=1)
        if table.mean(dim=0).abs().max() < 1e-9 and (table.norm(dim=1) - 1).abs().max() < 1e-9:
            return table.float()
    expected = f"a width in which {len(table)} unit vectors can be centred"
    raise InputError("dim", table.shape[1], expected, "take a larger one, or other vectors")


def component_std(table: Tensor) -> float:
    """sigma_data of a table (K, dim): the root mean square of its components about their mean."""
    centred = table.double() - table.double().mean(dim=0)
    return float(centred.square().mean().sqrt())


def mean_pairwise_cosine(table: Tensor) -> float:
    """Mean cosine between different rows (K, dim): -1/(K - 1) for a simplex, 1 for a table that has collapsed."""
    unit = functional.normalize(table.double(), dim=1)
    cosines, count = unit @ unit.T, len(table)
    return float(cosines.sum() - cosines.trace()) / (count * (count - 1))


def _check_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise InputError("num_classes", num_classes, "at least 2 classes")
