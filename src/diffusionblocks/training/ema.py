"""Averaged weights of one block: evaluation uses them, training goes on from the raw ones."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from diffusionblocks.checkpoint import canonical_name


class Ema:
    """Exponential moving average of a unit's parameters.

    The decay of update t is min(decay, (1 + t) / (10 + t)), so that early averages forget the initialisation.

    Args:
        unit: the block or network.
        decay: in [0, 1).
    """

    def __init__(self, unit: nn.Module, decay: float):
        self.decay = decay
        self._parameters = {canonical_name(name): p for name, p in unit.named_parameters()}
        self.average: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Take the current weights in; `updates` is how many updates the unit has had."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        raw = [p.detach() for p in self._parameters.values()]
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
            list(self.average.values()), raw, 1.0 - decay
        )

    @torch.no_grad()
    def load(self, average: dict[str, Tensor]) -> None:
        """Take stored averages over, by name."""
        for name, tensor in self.average.items():
            tensor.copy_(average[name])

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the unit has its averaged weights; the raw ones are back after it, bit for bit."""
        raw = {name: p.detach().clone() for name, p in self._parameters.items()}
        try:
            self._write(self.average)
            yield
        finally:
            self._write(raw)

    @torch.no_grad()
    def _write(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[name])
