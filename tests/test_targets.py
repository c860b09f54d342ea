"""The tables of targets are unit-norm, centred and the same on every machine; a collapsed one is measured as such."""

import numpy as np
import pytest
import torch

from diffusionblocks.errors import InputError
from diffusionblocks.targets import component_std, mean_pairwise_cosine, random_table, simplex_table

RANDOM = pytest.mark.parametrize(("num_classes", "dim"), [(2, 8), (3, 2), (10, 16), (100, 8), (300, 64)])


@pytest.mark.parametrize("num_classes", range(2, 51))
def test_the_simplex_has_unit_vectors_at_equal_angles(num_classes):
    table = simplex_table(num_classes)
    assert table.shape == (num_classes, num_classes - 1)
    assert table.dtype == torch.float32
    cosines = np.full((num_classes, num_classes), -1 / (num_classes - 1))
    np.fill_diagonal(cosines, 1.0)
    np.testing.assert_allclose((table.double() @ table.double().T).numpy(), cosines, atol=1e-6)
    np.testing.assert_allclose(table.double().mean(dim=0).numpy(), 0, atol=1e-7)


@RANDOM
def test_the_random_table_is_unit_norm_and_centred(num_classes, dim):
    table = random_table(num_classes, dim, seed=0).double()
    assert table.shape == (num_classes, dim)
    np.testing.assert_allclose(np.linalg.norm(table.numpy(), axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(table.numpy().mean(axis=0), 0, atol=1e-6)


def test_the_random_table_depends_on_its_seed_alone():
    table = random_table(10, 16, seed=3)
    torch.rand(5)
    assert torch.equal(random_table(10, 16, seed=3), table)
    assert (random_table(10, 16, seed=4) - table).norm() > 1.0


def test_classes_of_the_random_table_differ():
    table = random_table(100, 64, seed=0).double()
    cosines = table @ table.T - 2 * torch.eye(100)
    assert float(cosines.max()) < 0.7


@pytest.mark.parametrize("make", [simplex_table, lambda num_classes: random_table(num_classes, 8, 0)])
@pytest.mark.parametrize("num_classes", [1, 0, -3])
def test_fewer_than_two_classes_are_refused(make, num_classes):
    with pytest.raises(InputError, match=rf"^num_classes={num_classes}: expected at least 2 classes"):
        make(num_classes)


@pytest.mark.parametrize("num_classes", [2, 10, 50])
def test_the_component_std_of_a_simplex_is_that_of_unit_vectors(num_classes):
    assert component_std(simplex_table(num_classes)) == pytest.approx((num_classes - 1) ** -0.5, rel=1e-6)


def test_the_component_std_is_taken_about_each_components_mean():
    table = torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 16.0]])
    assert component_std(table) == pytest.approx(np.sqrt((4 + 0 + 4 + 4 + 4 + 16) / 6), rel=1e-12)
    assert component_std(table + 1000.0) == pytest.approx(component_std(table), rel=1e-12)
    assert component_std(torch.ones(4, 3)) == 0.0


def test_mean_pairwise_cosine_is_the_mean_over_pairs_of_rows():
    table = np.random.default_rng(0).normal(size=(6, 4))
    unit = [row / np.sqrt(sum(row**2)) for row in table]
    pairs = [float(np.dot(unit[i], unit[j])) for i in range(6) for j in range(6) if i != j]
    assert mean_pairwise_cosine(torch.from_numpy(table)) == pytest.approx(sum(pairs) / 30, abs=1e-12)


def test_mean_pairwise_cosine_tells_a_collapsed_table_from_a_simplex():
    assert mean_pairwise_cosine(torch.tensor([0.3, -2.0, 0.1]).repeat(10, 1)) == pytest.approx(1.0, abs=1e-12)
    assert mean_pairwise_cosine(simplex_table(10)) == pytest.approx(-1 / 9, abs=1e-6)
