"""The learning rate follows warm-up and cosine by a block's own updates; averaged weights follow their recursion."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from diffusionblocks.training.config import TrainingConfig
from diffusionblocks.training.ema import Ema
from diffusionblocks.training.schedule import learning_rate


def config(**settings) -> TrainingConfig:
    return TrainingConfig(updates=1, **{"lr": 2e-3, "lr_final": 1e-4, "warmup": 0.1, **settings})


def rates(num_updates: int, settings: TrainingConfig) -> list[float]:
    return [learning_rate(update, num_updates, settings) for update in range(num_updates + 1)]


# The learning rate.


def test_warm_up_rises_in_equal_steps_to_the_peak():
    np.testing.assert_allclose(rates(100, config())[:10], np.arange(1, 11) * 2e-4, rtol=1e-12)


def test_the_peak_is_lr_and_nothing_exceeds_it():
    assert max(rates(100, config())) == pytest.approx(2e-3, rel=1e-12)
    assert rates(100, config())[10] == pytest.approx(2e-3, rel=1e-12)


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
def test_after_warm_up_the_rate_is_torchs_cosine(warmup):
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=2e-3)
    warm = round(warmup * 40)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40 - warm, eta_min=1e-4)
    expected = []
    for _ in range(warm, 41):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        torchs.step()
    np.testing.assert_allclose(rates(40, config(warmup=warmup))[warm:], expected, rtol=1e-9)


@pytest.mark.parametrize("lr_final", [0.0, 1e-4, 2e-3])
def test_the_rate_ends_at_lr_final(lr_final):
    assert rates(100, config(lr_final=lr_final))[-1] == pytest.approx(lr_final, abs=1e-15)


def test_the_rate_rises_and_then_falls():
    values = rates(100, config())
    assert all(a < b for a, b in itertools.pairwise(values[:10]))
    assert all(a > b for a, b in itertools.pairwise(values[10:]))


def test_without_warm_up_the_first_update_has_the_peak():
    assert learning_rate(0, 100, config(warmup=0.0)) == 2e-3


def test_the_schedule_stretches_with_the_units_own_updates():
    """A block with half of the updates goes through the same rates in half of the time."""
    np.testing.assert_allclose(rates(200, config())[20::2], rates(100, config())[10:], rtol=1e-12)


@pytest.mark.parametrize("num_updates", [1, 2, 3])
@pytest.mark.parametrize("warmup", [0.0, 0.5, 0.99])
def test_the_shortest_budgets_have_positive_rates_up_to_lr(num_updates, warmup):
    values = rates(num_updates, config(warmup=warmup))[:-1]
    assert all(0 < value <= 2e-3 * (1 + 1e-12) for value in values)


@pytest.mark.parametrize(
    ("settings", "num_samples", "expected"),
    [
        ({"updates": 7}, 1000, 7),
        ({"epochs": 1, "batch_size": 10}, 1000, 100),
        ({"epochs": 2.5, "batch_size": 10}, 100, 25),
        ({"epochs": 1, "batch_size": 30}, 100, 3),
        ({"epochs": 0.001, "batch_size": 128}, 100, 1),
    ],
)
def test_a_budget_in_epochs_is_counted_in_updates(settings, num_samples, expected):
    assert TrainingConfig(**settings).num_updates(num_samples) == expected


# Averaged weights.


def network() -> nn.Linear:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return module


def perturb(module: nn.Module, seed: int) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))


def copies(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def averaged(num_updates: int = 5) -> tuple[nn.Linear, Ema]:
    module = network()
    ema = Ema(module, 0.9)
    for update in range(1, num_updates + 1):
        perturb(module, update)
        ema.update(update)
    return module, ema


def test_the_average_starts_at_the_weights_it_is_given():
    module = network()
    average = Ema(module, 0.9).average
    assert all(torch.equal(average[name], weight) for name, weight in copies(module).items())


@pytest.mark.parametrize("decay", [0.0, 0.25, 0.9])
def test_the_average_follows_its_recursion(decay):
    """average <- d average + (1 - d) weights, d = min(decay, (1 + t) / (10 + t)), in numpy."""
    module = network()
    ema = Ema(module, decay)
    expected = {name: weight.numpy().astype(np.float64) for name, weight in copies(module).items()}
    for update in range(1, 121):
        perturb(module, update)
        ema.update(update)
        d = min(decay, (1 + update) / (10 + update))
        for name, weight in copies(module).items():
            expected[name] = d * expected[name] + (1 - d) * weight.numpy()
    for name, average in ema.average.items():
        np.testing.assert_allclose(average.numpy(), expected[name], rtol=1e-4, atol=1e-5)


def test_the_average_leaves_the_weights_alone():
    module, ema = averaged()
    before = copies(module)
    ema.update(6)
    assert all(torch.equal(parameter, before[name]) for name, parameter in module.named_parameters())


def test_inside_applied_the_network_computes_with_the_average():
    module, ema = averaged()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(9))
    expected = nn.functional.linear(x, ema.average["weight"], ema.average["bias"])
    assert not torch.allclose(module(x), expected)
    with ema.applied():
        assert torch.equal(module(x), expected)


@pytest.mark.parametrize("fails", [False, True])
def test_after_applied_the_raw_weights_are_back_bit_for_bit(fails):
    module, ema = averaged()
    before, average = copies(module), {name: tensor.clone() for name, tensor in ema.average.items()}
    try:
        with ema.applied():
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert all(torch.equal(parameter, before[name]) for name, parameter in module.named_parameters())
    assert all(torch.equal(ema.average[name], tensor) for name, tensor in average.items())


def test_a_loaded_average_goes_on_as_the_stored_one():
    module, ema = averaged()
    stored = {name: tensor.clone() for name, tensor in ema.average.items()}
    resumed = Ema(module, 0.9)
    resumed.load(stored)
    perturb(module, 6)
    ema.update(6)
    resumed.update(6)
    assert all(torch.equal(resumed.average[name], tensor) for name, tensor in ema.average.items())
    assert not any(torch.equal(stored[name], tensor) for name, tensor in ema.average.items())
