"""Conditioning starts neutral, tells noise levels apart, gives right gradients, and never mixes two forwards up."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diffusionblocks.conditioning import (
    Conditioning,
    LeanFeatures,
    LevelSlot,
    Modulate,
    Modulation,
    NoiseLevel,
    PaperFeatures,
    ScaleShift,
)
from diffusionblocks.errors import InputError
from diffusionblocks.noise import LogNormal

LAWS = pytest.mark.parametrize("law", [LogNormal(), LogNormal(p_mean=0.3, p_std=1.0)], ids=["paper", "ours"])
KINDS = pytest.mark.parametrize("kind", ["lean", "scale-shift", "adaln"])
SHAPES = pytest.mark.parametrize("shape", [(3, 4), (3, 5, 4), (2, 3, 2, 4)], ids=str)


def scale_shift_inputs(shape: tuple[int, ...]) -> list[Tensor]:
    """out, log_scale of both signs, and shift; float64 leaves."""
    randomness = torch.Generator().manual_seed(0)
    per_channel = (shape[0], *[1] * (len(shape) - 2), shape[-1])

    def normal(size: tuple[int, ...]) -> Tensor:
        return torch.randn(size, generator=randomness, dtype=torch.float64)

    return [t.requires_grad_() for t in (normal(shape), normal(per_channel), normal(per_channel))]


def conditioning(kind: str, *, num_sites: int = 3, width: int = 16, trained: bool = False) -> Conditioning:
    """Conditioning with 8 features; `trained` has weights that are no longer neutral."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Conditioning(kind, LogNormal(), num_sites, width, 8)  # pyright: ignore[reportArgumentType]
        if trained:
            nn.init.normal_(module.weight, std=0.5)
    return module


def modulate(site: int, modulation: Modulation, out: Tensor) -> Tensor:
    slot = LevelSlot()
    with slot.set(NoiseLevel(modulation=modulation)):
        modulated = Modulate(slot, site)(nn.Identity(), (), out)
    assert modulated is not None
    return modulated


def scales_and_shifts(module: Conditioning, sigmas: list[float]) -> tuple[Tensor, Tensor]:
    """What the conditioning does to a norm's output, (sites, B, d) each, read off outputs of 0 and of 1."""
    with torch.no_grad():
        modulation = module(torch.tensor(sigmas, dtype=torch.float64))
    zeros = torch.zeros(len(sigmas), module.hidden_size)
    shifts = torch.stack([modulate(site, modulation, zeros) for site in range(module.num_sites)])
    both = torch.stack([modulate(site, modulation, zeros + 1) for site in range(module.num_sites)])
    return both - shifts, shifts


# Scale and shift.


@SHAPES
def test_scale_shift_has_the_gradients_of_finite_differences(shape):
    assert torch.autograd.gradcheck(ScaleShift.apply, scale_shift_inputs(shape))


@SHAPES
def test_scale_shift_equals_the_plain_expression_and_its_gradients(shape):
    inputs = scale_shift_inputs(shape)
    out, log_scale, shift = inputs
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = out * log_scale.exp() + shift
    torch.testing.assert_close(ScaleShift.apply(*inputs), plain)
    ours = torch.autograd.grad(ScaleShift.apply(*inputs), inputs, upstream)
    torch.testing.assert_close(ours, torch.autograd.grad(plain, inputs, upstream))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_modulation_takes_the_dtype_of_what_it_modulates(dtype):
    modulation = conditioning("scale-shift", trained=True)(torch.tensor([0.1, 10.0], dtype=torch.float64))
    assert modulate(0, modulation, torch.ones(2, 5, 16, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("shape", [(2, 4), (2, 5, 4), (2, 3, 3, 4)], ids=str)
def test_each_sample_and_site_takes_its_own_scale_and_shift(shape):
    randomness = torch.Generator().manual_seed(0)
    log_scales, shifts = torch.randn(2, 3, 2, 4, generator=randomness)
    out = torch.randn(shape, generator=randomness)
    for site in range(3):
        modulated = modulate(site, tuple(zip(log_scales, shifts, strict=True)), out)
        for row in range(2):
            expected = out[row] * log_scales[site, row].exp() + shifts[site, row]
            torch.testing.assert_close(modulated[row], expected)


def test_without_modulation_a_norm_is_left_alone():
    slot = LevelSlot()
    with slot.set(NoiseLevel()):
        assert Modulate(slot, 0)(nn.Identity(), (), torch.ones(2, 4)) is None


# The module that makes them.


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_conditioning_is_exactly_neutral_at_initialisation(kind, dtype):
    modulation = conditioning(kind)(torch.tensor([0.002, 0.3, 80.0], dtype=torch.float64))
    out = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    for site in range(3):
        assert torch.equal(modulate(site, modulation, out), out)


@KINDS
def test_trained_conditioning_differs_by_site_level_and_channel_and_has_positive_scales(kind):
    scales, shifts = scales_and_shifts(conditioning(kind, trained=True), [0.01, 0.3, 30.0])
    assert scales.shape == shifts.shape == (3, 3, 16)
    assert float(scales.min()) > 0
    if kind == "lean":
        torch.testing.assert_close(scales, torch.ones_like(scales))
    for values in (shifts,) if kind == "lean" else (scales, shifts):
        for dim in range(3):
            assert float(values.diff(dim=dim).abs().min()) > 0


@KINDS
def test_the_modulation_of_a_sample_depends_on_its_own_level(kind):
    module, sigmas = conditioning(kind, trained=True), [0.01, 0.3, 30.0]
    together = scales_and_shifts(module, sigmas)
    for row, sigma in enumerate(sigmas):
        for values, alone in zip(together, scales_and_shifts(module, [sigma]), strict=True):
            torch.testing.assert_close(values[:, row], alone[:, 0])


@KINDS
def test_neutral_conditioning_gets_gradients_for_every_scale_and_shift(kind):
    """Zero weights must not be a saddle that training cannot leave."""
    module = conditioning(kind)
    modulation = module(torch.tensor([0.01, 30.0], dtype=torch.float64))
    sum(modulate(site, modulation, torch.ones(2, 16)).sum() for site in range(3)).backward()
    assert module.weight.grad is not None
    assert float(module.weight.grad.abs().sum(dim=1).min()) > 0


@pytest.mark.parametrize(("num_sites", "width", "features"), [(1, 16, 8), (4, 128, 8), (5, 32, 16)])
def test_lean_conditioning_costs_d_r_parameters_a_site_and_scales_as_many_again(num_sites, width, features):
    for kind, parts in (("lean", 1), ("scale-shift", 2)):
        module = Conditioning(kind, LogNormal(), num_sites, width, features)
        assert sum(p.numel() for p in module.parameters()) == num_sites * parts * width * features


def test_adaln_conditioning_costs_2_d_squared_parameters_a_site():
    def count(num_sites: int) -> int:
        return sum(p.numel() for p in Conditioning("adaln", LogNormal(), num_sites, 32, 8).parameters())

    assert count(5) - count(1) == 4 * 2 * 32**2


@pytest.mark.parametrize("width", [0, 1, 7, -2])
def test_an_odd_number_of_features_is_refused(width):
    with pytest.raises(InputError, match=rf"^conditioning_features={width}: expected an even number of at least 2$"):
        LeanFeatures(LogNormal(), width)


# Features of the noise level.


def smallest_and_largest_difference(features: Tensor, neighbours: bool) -> tuple[float, float]:
    """Of two levels' features (only neighbours or any two), relative to their norm."""
    distance = torch.cdist(features, features) / features.norm(dim=1)
    distance = distance.diagonal(1) if neighbours else distance[~torch.eye(len(distance), dtype=torch.bool)]
    return float(distance.min()), float(distance.max())


def levels() -> Tensor:
    """200 levels, each 5% above the one before, over the whole range."""
    return torch.logspace(math.log10(0.002), math.log10(80.0), 200, dtype=torch.float64)


@LAWS
@pytest.mark.parametrize(
    "make", [lambda law: LeanFeatures(law, 8), lambda law: PaperFeatures(64)], ids=["lean", "adaln"]
)
def test_features_tell_any_two_noise_levels_apart(law, make):
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        features = make(law)(levels())
    assert features.dtype == torch.float32
    assert smallest_and_largest_difference(features, neighbours=False)[0] > 0.02


def test_sinusoids_made_for_timesteps_are_nearly_constant_over_c_noise():
    """The control of the test above: what a usual timestep embedding makes of ln(sigma) / 4."""
    frequencies = 10_000.0 ** (-torch.arange(128, dtype=torch.float64) / 128)
    angle = (levels().log() / 4)[:, None] * frequencies
    raw = torch.cat([angle.cos(), angle.sin()], dim=1)
    assert smallest_and_largest_difference(raw, neighbours=True)[1] < 0.005


@LAWS
def test_lean_features_are_smooth_over_the_whole_range(law):
    """So that a block interpolates between the levels it was trained at: 5% more noise moves them by under 10%."""
    assert smallest_and_largest_difference(LeanFeatures(law, 8)(levels()), neighbours=True)[1] < 0.1


# The slot that holds the level of the running forward.


def test_a_block_called_without_a_level_says_how_to_call_it():
    with pytest.raises(
        RuntimeError, match=r"without a noise level: call block\(x, z, sigma\), or .*block\.neutral\(\)"
    ):
        Modulate(LevelSlot(), 0)(nn.Identity(), (), torch.ones(2, 4))


def test_nested_levels_come_back():
    slot, outer, inner = LevelSlot(), NoiseLevel(token=torch.zeros(1)), NoiseLevel(token=torch.ones(1))
    with slot.set(outer):
        with slot.set(inner):
            assert slot.require() is inner
        assert slot.require() is outer
    with pytest.raises(RuntimeError, match="without a noise level"):
        slot.require()


def test_the_level_comes_back_after_an_exception():
    slot, outer = LevelSlot(), NoiseLevel()
    with slot.set(outer):
        with pytest.raises(KeyError), slot.set(NoiseLevel()):
            raise KeyError
        assert slot.require() is outer


@pytest.mark.parametrize("checkpointed", [False, True])
def test_two_forwards_before_one_backward_keep_their_own_levels(checkpointed):
    slot, norm = LevelSlot(), nn.LayerNorm(4).double()
    norm.register_forward_hook(Modulate(slot, 0))
    randomness = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, generator=randomness, dtype=torch.float64)
    log_scales, shifts = torch.randn(2, 2, 2, 4, generator=randomness, dtype=torch.float64)

    def forward(log_scale: Tensor, shift: Tensor) -> Tensor:
        with slot.set(NoiseLevel(modulation=((log_scale, shift),))):
            if checkpointed:
                return checkpoint(norm, x, use_reentrant=False, context_fn=slot.checkpoint_contexts).square().sum()
            return norm(x).square().sum()

    sum(forward(*level) for level in zip(log_scales, shifts, strict=True)).backward()
    # For the loss sum((n w e^l + h)^2) at w = 1, n the normalised x: d/dw = sum over samples of 2 (n e^l + h) n e^l.
    scaled = (
        (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + norm.eps).sqrt() * log_scales.exp()
    )
    assert norm.weight.grad is not None
    torch.testing.assert_close(norm.weight.grad, (2 * (scaled + shifts) * scaled).sum(dim=(0, 1)))
