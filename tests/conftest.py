"""A network small enough to train in a test, and data for it."""

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from diffusionblocks.data.batches import TensorBatches
from diffusionblocks.randomness import keyed_generator, seeded

torch.set_num_threads(1)


@pytest.fixture
def tiny_config() -> ViTConfig:
    """5 layers, so that 3 blocks get 2, 2 and 1; dropout on."""
    return ViTConfig(
        hidden_size=16,
        num_hidden_layers=5,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=4,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )


@pytest.fixture
def tiny_network(tiny_config) -> ViTForImageClassification:
    with seeded("cpu", 0, "test network"):
        return ViTForImageClassification(tiny_config).eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(37, 1, 8, 8, generator=keyed_generator(0, "images"))


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.randint(0, 4, (37,), generator=keyed_generator(0, "labels"))


@pytest.fixture
def batches(images, labels) -> TensorBatches:
    return TensorBatches(images, labels)
