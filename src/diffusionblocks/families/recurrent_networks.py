"""What the recurrent denoiser stands beside: the same network as a loop, trained by backpropagation through its passes.

The state starts from noise and goes through the core a random number of times (Geiping et al. 2025). Gradients go
through all passes, or through the last few: truncated backpropagation through time.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffusionblocks.conditioning import LevelSlot, NoiseLevel
from diffusionblocks.errors import InputError
from diffusionblocks.families.causal_networks import PlainCausalLm, mean_loss
from diffusionblocks.families.token_loss import token_losses
from diffusionblocks.recurrence import Passes, Recurrence


def core_of(layers: nn.ModuleList, prelude: int, coda: int) -> list[nn.Module]:
    """The layers of the core: all but the first `prelude` and the last `coda`.

    Raises:
        InputError: none are left for it.
    """
    if prelude + coda >= len(layers):
        known = f"fewer than the network's {len(layers)} layers: those between them are the core"
        raise InputError("prelude + coda", prelude + coda, known)
    return list(layers)[prelude : len(layers) - coda]


@dataclass(frozen=True)
class LoopDraw:
    """The randomness of one batch.

    Attributes:
        count: passes of the core.
        start: the state that they start from (B, n, d).
    """

    count: int
    start: Tensor

    def to(self, device: torch.device) -> "LoopDraw":
        return dataclasses.replace(self, start=self.start.to(device))

    def __getitem__(self, rows: slice) -> "LoopDraw":
        return dataclasses.replace(self, start=self.start[rows])


def draw_count(mean: int, generator: torch.Generator) -> int:
    """A number of passes of the given mean: 1 + Poisson(rate), log rate ~ N(log(mean - 1) - 1/8, 1/4)."""
    if mean == 1:
        return 1
    rate = math.log(mean - 1) - 0.125 + 0.5 * torch.randn((), dtype=torch.float64, generator=generator)
    return 1 + int(torch.poisson(rate.exp(), generator=generator))


class LoopedLm(PlainCausalLm):
    """A recurrent-depth network as a loop.

    Args:
        backbone, index, name: as for `PlainCausalLm`.
        prelude, coda: layers before and after the core.
        num_recurrences: mean number of passes in training, and their number otherwise.
        with_gradient: the last passes, that gradients go through; None: all.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        index: int = 0,
        name: str = "network",
        *,
        prelude: int,
        coda: int,
        num_recurrences: int,
        with_gradient: int | None,
    ):
        super().__init__(backbone, index, name)
        self.num_recurrences, self.with_gradient = num_recurrences, with_gradient
        self.slot, self.width = LevelSlot(), backbone.config.hidden_size
        self.recurrence = Recurrence(self.slot, core_of(self.layers, prelude, coda), self.width, self.width)

    def draw(self, batch_size: int, generator: torch.Generator) -> LoopDraw:
        """A number of passes, and where they start."""
        start = torch.randn(batch_size, self.seq_len, self.width, generator=generator)
        return LoopDraw(draw_count(self.num_recurrences, generator), start)

    def loss(self, x: Tensor, y: Tensor, draw: LoopDraw) -> Tensor:  # type: ignore[override]
        """Mean cross-entropy of a sequence's tokens, (B,) float32 in nats; arguments as for a block."""
        with self.looping(draw.start[:, : x.shape[1]], draw.count):
            states = super().free(x)
        return mean_loss(token_losses(states, y, self.head, self.vocabulary.size), y)

    @contextlib.contextmanager
    def looping(self, start: Tensor, count: int, caches: Sequence[Any] | None = None) -> Iterator[None]:
        """Inside, the backbone runs its core `count` times from a state (B, n, d); `caches` as in `Passes`."""
        with self.slot.set(NoiseLevel(state=start, passes=Passes(count, self.with_gradient, caches))):
            yield

    def free(self, x: Tensor) -> Tensor:
        """Last hidden states (B, n, d) after each of x (B, n), `num_recurrences` passes from 0, the mean start."""
        with self.looping(torch.zeros(*x.shape, self.width, device=x.device), self.num_recurrences):
            return super().free(x)

    @contextlib.contextmanager
    def reading(self, places: Tensor, memory: Any) -> Iterator[None]:
        start = torch.zeros(*places.shape, self.width, device=places.device)
        with self.looping(start, self.num_recurrences, memory.of_passes(self.num_recurrences - 1)):
            yield
