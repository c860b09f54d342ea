"""On a mixture of Gaussians the best denoiser is known: each block comes close to it over its own range."""

import math

import pytest
import torch
from torch import Tensor

from diffusionblocks import TensorBatches, Trainer, TrainingConfig, convert
from diffusionblocks.noise import draw_levels
from diffusionblocks.precondition import edm_weight
from diffusionblocks.randomness import keyed_generator

SIZE, CLASSES, SPREAD = 4, 3, 0.25
NETWORK = {
    **{"_class_name": "DiTTransformer2DModel", "num_attention_heads": 2, "attention_head_dim": 24, "in_channels": 1},
    **{"num_layers": 3, "sample_size": SIZE, "patch_size": 2, "num_embeds_ada_norm": CLASSES, "dropout": 0.0},
}


def means() -> Tensor:
    """Two modes a class: (CLASSES, 2, 1, 4, 4)."""
    generator = keyed_generator(0, "modes")
    return torch.where(torch.rand(CLASSES, 2, 1, SIZE, SIZE, generator=generator) < 0.5, -0.6, 0.6).double()


def draw(count: int, *key) -> tuple[Tensor, Tensor]:
    """Classes (count,) and images (count, 1, 4, 4): a mode of the class plus isotropic noise of sd SPREAD."""
    generator = keyed_generator(0, *key)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    modes = torch.randint(2, (count,), generator=generator)
    noise = torch.randn(count, 1, SIZE, SIZE, generator=generator)
    return labels, (means()[labels, modes] + SPREAD * noise).float()


def posterior_mean(labels: Tensor, z: Tensor, sigma: Tensor, modes: Tensor, spread: float) -> Tensor:
    """E[y | z, class] for equally likely modes: the modes' linear denoisers, weighted by how likely z is from each."""
    var = sigma.view(-1, 1, 1, 1) ** 2
    distance = (z[:, None] - modes[labels]).square().sum(dim=(2, 3, 4)) / (2 * (spread**2 + var.view(-1, 1)))
    share = (-distance).softmax(dim=1)[:, :, None, None, None]
    each = modes[labels] + (spread**2 / (spread**2 + var))[:, None] * (z[:, None] - modes[labels])
    return (share * each).sum(dim=1)


def test_the_posterior_mean_has_the_least_error():
    """Against what any other denoiser gives, such as one of its neighbours."""
    labels, y = draw(20_000, "check")
    sigma = torch.full((len(y),), 0.7, dtype=torch.float64)
    z = y.double() + 0.7 * torch.randn(y.shape, generator=keyed_generator(1, "noise")).double()
    best = posterior_mean(labels, z, sigma, means(), SPREAD)

    def error(denoised: Tensor) -> float:
        return float((denoised - y).square().mean())

    assert error(best) < min(error(0.98 * best), error(1.02 * best), error(best + 0.05), error(z))
    assert error(best) < error(posterior_mean(labels.roll(1), z, sigma, means(), SPREAD))


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [1, 3])
def test_each_block_comes_within_a_tenth_of_the_best_error(num_blocks):
    """Excess error E[w |D - E[y|z]|^2] over the block's range, against the error of the posterior mean itself."""
    labels, images = draw(60_000, "train")
    mean, std = float(images.mean()), float(images.std())
    scaled = {"data_mean": (mean,), "data_std": (std,), "label_dropout": 0.0, "gamma": 0.05}
    model = convert(NETWORK, num_blocks, **scaled)
    config = TrainingConfig(updates=2500, batch_size=128, lr=5e-3, ema_decay=0.995, weight_decay=0.0)
    trainer = Trainer(model, TensorBatches(labels, images), config, progress=False, measure_memory=False)
    trainer.train()
    test_labels, test_images = draw(4000, "test")
    unit = 0.5 / std  # the blocks work in units in which the data have standard deviation 0.5
    modes = (means() - mean) * unit
    with trainer.averaged(), torch.no_grad():
        for block in model.eval().blocks:
            generator = keyed_generator(2, "levels", block.index)
            sigma = draw_levels(block.law, block.interval.lo, block.interval.hi, len(test_images), generator)
            noise = torch.randn(test_images.shape, generator=generator)
            z = block.noisy_target(test_images, sigma, noise)
            best = posterior_mean(test_labels, z.double(), sigma, modes, SPREAD * unit)
            found = block(test_labels, z, sigma).double()
            weight = edm_weight(sigma, 0.5).view(-1, 1, 1, 1)
            optimal = float((weight * (best - block.to_units(test_images)).square()).mean())
            excess = float((weight * (found - best).square()).mean())
            assert math.isfinite(optimal)
            assert excess <= 0.1 * optimal, f"block {block.index}: excess {excess:.4f}, optimal {optimal:.4f}"
