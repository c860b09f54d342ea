"""Layers in the middle of a network as a recurrent core, by a hook: the network is never edited.

The layers before the core are its prelude, those after it its coda. What goes into a pass of the core is a linear
`adapter` of its state and of the prelude's output, which every pass sees again. As a denoiser the core takes one pass
and its state is the noisy target; as a loop it takes several, and its state is what the pass before gave.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from diffusionblocks.conditioning import LevelSlot


@dataclass(frozen=True)
class Passes:
    """How often the core runs in one forward.

    Attributes:
        count: passes, 1 or more.
        with_gradient: how many of the last ones gradients go through; None: all.
        caches: keys and values of each pass but the last, whose are the network's own; None: none are kept.
    """

    count: int = 1
    with_gradient: int | None = None
    caches: Sequence[Any] | None = None


class Recurrence(nn.Module):
    """The adapter of a core; a hook before its first layer puts it, and all passes but the last, into the network.

    Args:
        slot: where the state of the forward that is running is, and its number of passes.
        core: the layers of the core, in order: hidden states (B, n, d) in and out.
        hidden_size: d.
        state_size: width of the state.
    """

    def __init__(self, slot: LevelSlot, core: Sequence[nn.Module], hidden_size: int, state_size: int):
        super().__init__()
        self.adapter = nn.Linear(state_size + hidden_size, hidden_size, bias=False)
        # A fresh network is the one without a state.
        with torch.no_grad():
            parts = torch.zeros(hidden_size, state_size), torch.eye(hidden_size)
            self.adapter.weight.copy_(torch.cat(parts, dim=1))
        core[0].register_forward_pre_hook(EnterCore(slot, core, self.adapter), with_kwargs=True)


class EnterCore:
    """Forward pre-hook of the first layer of a core: its input is the adapter's output for the last pass."""

    def __init__(self, slot: LevelSlot, core: Sequence[nn.Module], adapter: nn.Linear):
        self.slot, self.core, self.adapter = slot, list(core), adapter
        self.inside = False

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        level = self.slot.require()
        if self.inside or level.state is None:
            return None
        prelude, state, passes = args[0], level.state, level.passes or Passes()
        self.inside = True
        try:
            for number in range(passes.count - 1):
                kept = passes.with_gradient is None or number >= passes.count - passes.with_gradient
                own = kwargs if passes.caches is None else _with_cache(kwargs, passes.caches[number])
                with torch.set_grad_enabled(kept and torch.is_grad_enabled()):
                    state = self._pass(state, prelude, args[1:], own)
        finally:
            self.inside = False
        return (self._mixed(state, prelude), *args[1:]), kwargs

    def _pass(self, state: Tensor, prelude: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        hidden = self._mixed(state, prelude)
        for layer in self.core:
            hidden = layer(hidden, *args, **kwargs)
        # The adapter sees a state of unit size whatever the pass, as a denoiser's is.
        return nn.functional.rms_norm(hidden, hidden.shape[-1:])

    def _mixed(self, state: Tensor, prelude: Tensor) -> Tensor:
        state = state.to(prelude.dtype).expand(*prelude.shape[:-1], -1)
        return self.adapter(torch.cat([state, prelude], dim=-1))


def _with_cache(kwargs: dict[str, Any], cache: Cache) -> dict[str, Any]:
    """A layer's arguments with other keys and values, whatever its class calls them."""
    return {name: cache if isinstance(value, Cache) else value for name, value in kwargs.items()}
