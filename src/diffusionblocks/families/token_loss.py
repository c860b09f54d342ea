"""Cross-entropy of tokens from hidden states, a few positions at a time: the logits of a batch never exist at once.

A chunk's logits are computed, reduced and let go of; the backward pass computes them again. The sums are those of the
whole, so it is exact but for the rounding of a product of other shape.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from diffusionblocks.marks import PAD

CHUNK_LOGITS = 1 << 22
"""Logits that may exist at once: 16 MB in fp32, of a batch of 64 x 64 characters all and of 32k tokens 131."""


def token_losses(
    states: Tensor, y: Tensor, head: Callable[[Tensor], Tensor], size: int, chunk: int | None = None
) -> Tensor:
    """Cross-entropy of each token, (B, n) float32 in nats; 0 where y is PAD.

    Args:
        states: hidden states (B, n, d).
        y: tokens (B, n), or PAD.
        head: logits (m, V) of states (m, d).
        size: V.
        chunk: positions at a time; None: as many as have CHUNK_LOGITS logits.
    """
    flat, wanted = states.flatten(0, 1), y.flatten()
    chunk = max(1, CHUNK_LOGITS // size) if chunk is None else chunk
    if chunk >= len(flat):
        return _losses(head, flat, wanted).view(y.shape)
    parts = [
        checkpoint(_losses, head, some, of_them, use_reentrant=False)
        for some, of_them in zip(flat.split(chunk), wanted.split(chunk), strict=True)
    ]
    return torch.cat(parts).view(y.shape)  # type: ignore[arg-type]


def _losses(head: Callable[[Tensor], Tensor], states: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(head(states).float(), y, reduction="none", ignore_index=PAD)
