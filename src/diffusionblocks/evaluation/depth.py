"""What a recurrent language model gains by more passes: bits by depth, and what is saved where its answer has settled.

Of the denoiser a pass is a step of the chain, whose bits are a bound from the second on; of a loop it is one run of the
core, and its bits are exact for the network of that depth.
"""

import math
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from diffusionblocks.block import plan_of
from diffusionblocks.data.text import TokenSet
from diffusionblocks.evaluation.likelihood import standard_error
from diffusionblocks.evaluation.next_token import CausalModel, blocks_chain_nats, free_nats
from diffusionblocks.families.recurrent_networks import LoopedLm
from diffusionblocks.marks import PAD, before
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.randomness import keyed_generator

DEPTHS = (1, 2, 4, 8, 16, 32, 64)
SETTLE = (1e-4, 1e-3, 1e-2)
"""Divergences, in nats, below which an answer is taken to have settled."""


def is_recurrent(model: CausalModel) -> bool:
    """Whether a model can run its core more or less often."""
    return isinstance(model, LoopedLm) or (isinstance(model, BlockwiseModel) and model.config.family == "recurrent-lm")


@torch.no_grad()
def depth_curve(
    model: CausalModel, data: TokenSet, depths: tuple[int, ...] = DEPTHS, windows: int = 256, seed: int = 0
) -> dict[str, Any]:
    """Bits per character of a model that runs its core more or less often, over some windows of a split.

    Args:
        model: a recurrent denoiser, or a loop.
        data: the split.
        depths: numbers of passes.
        windows: how many, evenly over the split.
        seed: keys the noise of each window.

    Returns:
        windows; curve: of each depth passes, bits_per_character with its standard error over windows, and estimate
        ("exact" or "bound"); and of a denoiser early_exit: of each divergence settle, the same of a chain of the
        largest depth that ends where its answer has settled, with passes, the mean number of those it took.
    """
    index = torch.linspace(0, len(data) - 1, min(windows, len(data))).round().long()
    tokens, valid = data.rows(index)
    sizes = valid.sum(dim=1).double()
    # Characters of these windows, as many a token as in the whole split.
    characters = float(sizes.sum()) * data.num_characters / data.num_tokens
    device = next(model.parameters()).device
    cases: list[tuple[int, float | None]] = [(depth, None) for depth in depths]
    if isinstance(model, BlockwiseModel):
        cases += [(max(depths), settle) for settle in SETTLE]
    found = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("depth", total=sum(depth for depth, _ in cases))
        for depth, settle in cases:
            parts = []
            for rows in torch.arange(len(index)).split(32):
                x, y = (part.to(device) for part in before(tokens[rows], valid[rows]))
                nats, passes = _scored(model, depth, settle, x, y.clamp(min=0), index[rows].tolist(), seed)
                real = y != PAD
                parts.append(torch.stack([(nats * real).sum(dim=1), (passes * real).sum(dim=1)]).cpu())
            bits, taken = torch.cat(parts, dim=1)
            bits = bits / math.log(2)
            is_exact = isinstance(model, LoopedLm) or depth == 1
            found.append(
                {
                    "passes": float(taken.sum() / sizes.sum()) if settle is not None else depth,
                    "bits_per_character": float(bits.sum() / characters),
                    "se": standard_error(bits, sizes) * float(sizes.sum()) / characters,
                    "estimate": "exact" if is_exact else "bound",
                }
                | ({} if settle is None else {"settle": settle, "of": depth})
            )
            progress.advance(task, depth)
    return {"windows": len(index), "curve": found[: len(depths)], "early_exit": found[len(depths) :]}


def _scored(
    model: Any, depth: int, settle: float | None, x: Tensor, y: Tensor, windows: list[int], seed: int
) -> tuple[Tensor, Tensor]:
    """(nats, passes) of each token (B, n)."""
    if isinstance(model, LoopedLm):
        usual, model.num_recurrences = model.num_recurrences, depth
        try:
            nats = free_nats([model], x, y)[0]
        finally:
            model.num_recurrences = usual
        return nats, torch.full_like(nats, depth)
    blocks, width = model.block_list, model.targets.shape[1]
    drawn = [torch.randn(2, depth, x.shape[1], width, generator=keyed_generator(seed, "depth", k)) for k in windows]
    noise = torch.stack(drawn, dim=2).to(x.device)
    return blocks_chain_nats(blocks, plan_of(model.config, depth), x, y, noise, "zero", settle)
