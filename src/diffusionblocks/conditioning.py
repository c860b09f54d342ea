"""Noise conditioning by forward hooks: every norm of a block is modulated by its noise level, the backbone unedited.

`Conditioning` turns a noise level into a (log_scale, shift) for each norm, once per forward; a `Modulate` hook at each
norm applies its own. What the hooks of a block see in one forward is a `NoiseLevel`, put into the block's `LevelSlot`
by a context manager, so that two forwards before one backward, or activation checkpointing, cannot mix levels up.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diffusionblocks.errors import InputError
from diffusionblocks.noise import NoiseLaw
from diffusionblocks.precondition import c_noise

ConditioningKind = Literal["lean", "scale-shift", "adaln"]
Modulation = tuple[tuple[Tensor | None, Tensor], ...]


@dataclass(frozen=True)
class NoiseLevel:
    """What the hooks of one block see during one forward; a part that is None leaves the network as it is.

    Attributes:
        modulation: (log_scale or None, shift) of every norm site, each (B, d), or (B, n, d) where it differs by token.
        token: the embedded noisy target (B, d), for a family in which it enters as a token.
        readout: (c_skip * z, c_out), (B, d) and (B, 1), for a readout of the preconditioned denoiser.
        state: what enters a recurrent core (B, n, d'), or (B, 1, d') for the same in every place.
        passes: how often that runs (see `recurrence`); None: once.
    """

    modulation: Modulation | None = None
    token: Tensor | None = None
    readout: tuple[Tensor, Tensor] | None = None
    state: Tensor | None = None
    passes: Any = None


class LevelSlot:
    """Holds the noise level of the forward that is running; shared by a block and all its hooks."""

    def __init__(self) -> None:
        self._current: NoiseLevel | None = None

    @contextlib.contextmanager
    def set(self, level: NoiseLevel) -> Iterator[None]:
        """Make `level` current inside the context and put the previous one back after it."""
        previous, self._current = self._current, level
        try:
            yield
        finally:
            self._current = previous

    def require(self) -> NoiseLevel:
        """The current noise level.

        Raises:
            RuntimeError: the backbone was called outside its block.
        """
        if self._current is None:
            raise RuntimeError(
                "a block was called without a noise level: call block(x, z, sigma), or block.backbone(...) inside "
                "`with block.neutral():` for the network without conditioning"
            )
        return self._current

    def checkpoint_contexts(self) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager]:
        """`context_fn` of torch's non-reentrant checkpoint: the recomputation sees the level of its own forward."""
        return contextlib.nullcontext(), self.set(self.require())


class ScaleShift(torch.autograd.Function):
    """out * exp(log_scale) + shift, per sample (or token) and channel, that keeps its result for the backward pass.

    The layer that reads the result keeps it too, so modulation adds nothing to the activations: autograd's own product
    would keep `out` besides, 2 of about 18 tensors a transformer layer keeps. The gradient of log_scale needs only
    sum(grad * out * scale) = sum(grad * result) - shift * sum(grad). Where norms give bf16 (a network all in bf16, not
    autocast), the rounding of the result limits that gradient once |shift| is far above the scale.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, log_scale: Tensor, shift: Tensor) -> Tensor:  # type: ignore[override]
        """out (B, ..., d), log_scale and shift (B, 1.., d) or out's shape -> (B, ..., d)."""
        scale = log_scale.exp()
        result = torch.addcmul(shift, out, scale)
        ctx.save_for_backward(result, scale, shift)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        result, scale, shift = ctx.saved_tensors
        grad_shift, moment = grad, grad * result
        inner = tuple(axis for axis in range(grad.ndim) if scale.shape[axis] == 1 < grad.shape[axis])
        if inner:
            # Sums over many tokens are taken in fp32 whatever the norm's dtype.
            wide = torch.promote_types(grad.dtype, torch.float32)
            grad_shift = grad.sum(inner, keepdim=True, dtype=wide)
            moment = moment.sum(inner, keepdim=True, dtype=wide)
        return grad * scale, moment - shift * grad_shift, grad_shift


class Modulate:
    """Forward hook of one norm: out -> out * exp(log_scale) + shift, in out's dtype."""

    def __init__(self, slot: LevelSlot, site: int):
        self.slot, self.site = slot, site

    def __call__(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        modulation = self.slot.require().modulation
        if modulation is None:
            return None
        log_scale, shift = modulation[self.site]
        if log_scale is None:
            return out + _beside(shift, out)
        return ScaleShift.apply(out, _beside(log_scale, out), _beside(shift, out))


def _beside(part: Tensor, out: Tensor) -> Tensor:
    """A part of the modulation (B, d) with 1s between for out (B, ..., d), in its dtype; (B, n, d) as it is."""
    return part.to(out.dtype).view(len(part), *[1] * (out.ndim - part.ndim), *part.shape[1:])


class LeanFeatures(nn.Module):
    """Smooth features of the noise level (ours): sines and cosines of the law's score, slow enough to interpolate.

    Args:
        law: the noise law whose score the features are made of.
        width: number of features, an even number.
    """

    def __init__(self, law: NoiseLaw, width: int):
        super().__init__()
        if width < 2 or width % 2:
            raise InputError("conditioning_features", width, "an even number of at least 2")
        self.law, self.width = law, width
        # Periods from about 25 standard deviations of the law (a trend over its whole range) down by octaves.
        # Not a buffer: casting the module to bf16 must not reach what noise levels are computed with.
        self._frequencies = 0.25 * 2.0 ** torch.arange(width // 2, dtype=torch.float64)

    def forward(self, sigma: Tensor) -> Tensor:
        """sigma (B,) float64 -> features (B, width) float32."""
        angle = self.law.score(sigma)[:, None] * self._frequencies.to(sigma.device)
        return torch.cat([angle.sin(), angle.cos()], dim=1).float()


class PaperFeatures(nn.Module):
    """The embedding of AdaLN (Appendix D): sinusoids of the noise level, then two linear layers.

    The sinusoids see 1000 * c_noise: those made for timesteps 0..1000 are nearly constant over c_noise itself.

    Args:
        width: d, the width of the embedding.
    """

    num_sinusoids = 256

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.mlp = nn.Sequential(nn.Linear(self.num_sinusoids, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())

    def forward(self, sigma: Tensor) -> Tensor:
        """sigma (B,) float64 -> features (B, width) float32."""
        half = self.num_sinusoids // 2
        periods = torch.arange(half, dtype=torch.float64, device=sigma.device) / half
        angle = (1000.0 * c_noise(sigma))[:, None] * (-math.log(10_000.0) * periods).exp()
        return self.mlp(torch.cat([angle.cos(), angle.sin()], dim=1).float())


class Conditioning(nn.Module):
    """Features of the noise level -> (log_scale, shift) of every norm site; exactly neutral at initialisation.

    "lean" (ours) has a shift alone: d r parameters a norm for r smooth features, and no further pass over the
    activations in the backward pass. "scale-shift" (ours) has both, 2 d r; "adaln" (the paper) both, 2 d^2. A scale of
    exp(log_scale) is 1 + log_scale to first order but never vanishes, which `ScaleShift` needs.

    Args:
        kind: "lean", "scale-shift" or "adaln".
        law: the noise law.
        num_sites: number of norms of the block.
        hidden_size: d.
        num_features: r of "lean" and "scale-shift".
    """

    def __init__(self, kind: ConditioningKind, law: NoiseLaw, num_sites: int, hidden_size: int, num_features: int):
        super().__init__()
        self.num_sites, self.hidden_size = num_sites, hidden_size
        self.features = PaperFeatures(hidden_size) if kind == "adaln" else LeanFeatures(law, num_features)
        self.parts = 1 if kind == "lean" else 2
        self.weight = nn.Parameter(torch.zeros(num_sites * self.parts * hidden_size, self.features.width))

    def forward(self, sigma: Tensor) -> Modulation:
        """sigma (B,) float64 -> for every norm site (log_scale, shift), each (B, d); "lean" has None for log_scale."""
        out = nn.functional.linear(self.features(sigma), self.weight)
        # Unbound once: the backward of that is one stack, not a sum over sites.
        rows = out.view(-1, self.num_sites * self.parts, self.hidden_size).unbind(1)
        if self.parts == 1:
            return tuple((None, shift) for shift in rows)
        return tuple(zip(rows[::2], rows[1::2], strict=True))
