"""One optimizer step on one unit (a block, or a plain network that a block is compared with)."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from diffusionblocks.randomness import keyed_generator, seeded
from diffusionblocks.training.config import TrainingConfig


class Unit(Protocol):
    """What the trainer trains."""

    index: int
    name: str

    @property
    def layers(self) -> nn.ModuleList:
        """Its residual layers, counted apart in memory."""
        ...

    def draw(self, batch_size: int, generator: torch.Generator) -> Any:
        """The randomness of one batch's loss, sliceable by rows, or None."""
        ...

    def loss(self, x: Tensor, y: Tensor, draw: Any) -> Tensor:
        """Loss of each sample (B,)."""
        ...

    def unmodulated(self) -> contextlib.AbstractContextManager[None]:
        """Forwards without noise conditioning, to count what it costs."""
        ...

    def enable_checkpointing(self) -> None:
        """Recompute activations in the backward pass."""
        ...


def make_optimizer(unit: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over the unit's own parameters; weight decay on matrices only, as usual for transformers."""
    trained = [p for p in unit.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)


def train_step(
    unit: Any,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    update: int,
    lr: float,
    config: TrainingConfig,
) -> tuple[Tensor, Tensor]:
    """Draw the noise, accumulate the gradient of the mean loss over the micro-batches, clip it and step.

    The noise of the whole batch is drawn before it is cut into micro-batches, so accumulation changes nothing but the
    rounding (and dropout). Nothing here waits for the device.

    Args:
        unit: the block or plain network, in training mode.
        optimizer: its optimizer.
        x, y: the batch (B, ...), on the unit's device.
        update: number of this update, from 0; with config.seed and the unit's index the key of all randomness.
        lr: learning rate of this update.
        config: the rest.

    Returns:
        (mean loss, gradient norm before clipping), scalars on the device.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        parameter.grad = None
    draw = draw_for(unit, len(x), update, config.seed)
    draw = None if draw is None else draw.to(x.device)
    total = torch.zeros((), device=x.device)
    with seeded(x.device, config.seed, "dropout", unit.index, update):
        for rows in micro_batches(len(x), config.micro_batches):
            with autocast(x.device, config):
                losses = unit.loss(x[rows], y[rows], None if draw is None else draw[rows])
            loss = losses.float().sum() / len(x)
            loss.backward()
            total += loss.detach()
    norm = nn.utils.clip_grad_norm_(parameters, config.clip_norm)
    optimizer.step()
    return total, norm


def draw_for(unit: Any, batch_size: int, update: int, seed: int) -> Any:
    """The randomness of update number `update` of a unit; the same however often it is asked for."""
    return unit.draw(batch_size, keyed_generator(seed, "noise", unit.index, update))


def micro_batches(batch_size: int, parts: int) -> Iterator[slice]:
    """Slices of about equal size that cover a batch."""
    size = math.ceil(batch_size / parts)
    for first in range(0, batch_size, size):
        yield slice(first, min(first + size, batch_size))


def autocast(device: torch.device, config: TrainingConfig) -> contextlib.AbstractContextManager[Any]:
    """bf16 autocast if the settings and the device say so; weights, noise levels and the loss stay in fp32."""
    on = config.precision == "bf16"
    if config.precision == "auto":
        on = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, dtype=torch.bfloat16) if on else contextlib.nullcontext()
