"""Noise conditioning by forward hooks: every norm of a block is modulated by its noise level, the backbone unedited.

`Conditioning` turns a noise level into a (scale, shift) for each norm, once per forward; a `Modulate` hook at each norm
applies its own. What the hooks of a block see in one forward is a `NoiseLevel`, put into the block's `LevelSlot` by a
context manager, so that two forwards before one backward, or activation checkpointing, cannot mix levels up.
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

ConditioningKind = Literal["lean", "adaln"]


@dataclass(frozen=True)
class NoiseLevel:
    """What the hooks of one block see during one forward; a part that is None leaves the network as it is.

    Attributes:
        modulation: (1 + scale, shift) of every norm site, (sites, 2, B, d).
        token: the embedded noisy target (B, d), for a family in which it enters as a token.
        readout: (c_skip * z, c_out), (B, d) and (B, 1), for a readout of the preconditioned denoiser.
    """

    modulation: Tensor | None = None
    token: Tensor | None = None
    readout: tuple[Tensor, Tensor] | None = None


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


class Modulate:
    """Forward hook of one norm: out -> out * (1 + scale) + shift, in out's dtype."""

    def __init__(self, slot: LevelSlot, site: int):
        self.slot, self.site = slot, site

    def __call__(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        modulation = self.slot.require().modulation
        if modulation is None:
            return None
        scale, shift = modulation[self.site].to(out.dtype).unbind(0)
        shape = (out.shape[0], *[1] * (out.ndim - 2), out.shape[-1])
        # addcmul is one pass over the activations where a product and a sum would be two.
        return torch.addcmul(shift.reshape(shape), out, scale.reshape(shape))


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

    def forward(self, sigma: Tensor) -> Tensor:
        """sigma (B,) float64 -> features (B, width) float32."""
        # Periods from about 25 standard deviations of the law (a trend over its whole range) down by octaves.
        frequencies = 0.25 * 2.0 ** torch.arange(self.width // 2, dtype=torch.float64, device=sigma.device)
        angle = self.law.score(sigma)[:, None] * frequencies
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
    """Features of the noise level -> (1 + scale, shift) of every norm site; exactly neutral at initialisation.

    "lean" (ours) costs 2 d r parameters a norm, r the number of features; "adaln" (the paper) costs 2 d^2.

    Args:
        kind: "lean" or "adaln".
        law: the noise law.
        num_sites: number of norms of the block.
        hidden_size: d.
        num_features: r of "lean".
    """

    def __init__(self, kind: ConditioningKind, law: NoiseLaw, num_sites: int, hidden_size: int, num_features: int):
        super().__init__()
        self.num_sites, self.hidden_size = num_sites, hidden_size
        self.features = LeanFeatures(law, num_features) if kind == "lean" else PaperFeatures(hidden_size)
        self.weight = nn.Parameter(torch.zeros(num_sites * 2 * hidden_size, self.features.width))
        # The 1 of (1 + scale) as a constant bias: one matrix product makes all modulations of a forward.
        neutral = torch.zeros(num_sites, 2, hidden_size)
        neutral[:, 0] = 1.0
        self.register_buffer("neutral", neutral.flatten(), persistent=False)
        self.neutral: Tensor

    def forward(self, sigma: Tensor) -> Tensor:
        """sigma (B,) float64 -> (sites, 2, B, d): index 0 holds 1 + scale, index 1 the shift."""
        out = nn.functional.linear(self.features(sigma), self.weight, self.neutral)
        return out.view(-1, self.num_sites, 2, self.hidden_size).permute(1, 2, 0, 3)
