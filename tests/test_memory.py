"""Memory: what is measured against what can be counted by hand."""

import pytest
import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

from diffusionblocks import TensorBatches, Trainer, TrainingConfig, convert
from diffusionblocks.families.vit import PlainVit
from diffusionblocks.memory import forward_memory, kept_activations

UPDATES = TrainingConfig(updates=3, batch_size=16, ema_decay=0.9)


@pytest.fixture(scope="module")
def reports():
    """A block of B=3 and the whole network: 6 layers, d 64, 17 tokens, as in vit-digits."""
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
        hidden_dropout_prob=0.0,
    )
    data = TensorBatches(torch.randn(16, 1, 8, 8), torch.arange(16) % 10)
    block = convert(config, 3).block_list[1]
    whole = PlainVit(ViTForImageClassification(config))
    measured = [Trainer([unit], data, UPDATES, progress=False).train() for unit in (block, whole)]
    return block, whole, measured[0][1], measured[1][0]


def test_weights_gradients_and_optimizer_are_those_of_the_parameters(reports):
    for unit, report in (reports[::2], reports[1::2]):
        size = sum(p.nbytes for p in unit.parameters())
        count = sum(1 for _ in unit.parameters())
        assert report.total["weights"] == size
        assert report.total["gradients"] == size
        # Two moments and a step count (one fp32 number) a parameter.
        assert report.total["optimizer"] == 2 * size + 4 * count
        layers = sum(p.nbytes for p in unit.layers.parameters())
        assert report.plain_layers["weights"] == report.plain_layers["gradients"] == layers


def test_averaged_weights_and_batch_are_counted_as_other(reports):
    block, _, report, _ = reports
    batch = 16 * (64 * 4 + 8)
    assert report.total["other"] >= sum(p.nbytes for p in block.parameters()) + batch


def test_peak_is_between_the_largest_kind_and_the_sum(reports):
    for report in reports[2:]:
        kinds = [size for name, size in report.total.items() if name != "peak_total"]
        assert max(kinds) < report.total["peak_total"] <= sum(kinds)


def test_a_third_of_the_layers_needs_a_third_of_the_memory(reports):
    """Layers with their conditioning: states at most 1.06/B of end to end, activations at most 1.20/B."""
    _, _, block, whole = reports
    for kind in ("weights", "gradients", "optimizer"):
        assert block.layers[kind] <= 1.06 / 3 * whole.layers[kind]
        assert abs(block.plain_layers[kind] - whole.layers[kind] / 3) <= 0.001 * whole.layers[kind]
    assert block.layers["activations"] <= 1.20 / 3 * whole.layers["activations"]


def test_without_conditioning_activations_grow_by_the_added_token_only(reports):
    _, _, block, whole = reports
    assert block.plain_layers["activations"] / whole.layers["activations"] == pytest.approx(18 / 17 / 3, rel=0.01)


def test_modulation_keeps_no_activation_besides_its_parameters(reports):
    """Per layer two norms with scale and shift (B, d), made by exp and unbound: a few (B, d), never (B, tokens, d)."""
    _, _, block, _ = reports
    extra = block.layers["activations"] - block.plain_layers["activations"]
    per_sample_and_channel = extra / (16 * 64 * 4)
    assert 0 < per_sample_and_channel <= 2 * 2 * 3 * 2 + 2


def test_kept_activations_of_two_linear_layers_are_counted_by_hand():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 32), nn.Linear(32, 4)])

        def forward(self, x):
            return self.layers[1](self.layers[0](x).relu())

    unit, x = Two(), torch.randn(5, 8)
    # The first layer's output is freed once relu has read it; relu's result and the second output stay.
    kept = kept_activations(unit, [list(unit.layers)], lambda: unit(x))
    assert kept == 5 * (32 + 4) * 4


def test_forward_memory_counts_weights_and_the_largest_activations():
    unit, x = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 4)), torch.randn(5, 8)
    with torch.no_grad():
        memory = forward_memory(unit, lambda: unit(x))
    assert memory["weights"] == sum(p.nbytes for p in unit.parameters())
    assert memory["activations"] == 5 * (32 + 4) * 4
