"""Bits per character of a masked language model: a bound on the likelihood of held-out text, and each block's share.

The estimator is the same for every method. The range of masses is cut into strata of equal mass inside each block's
interval (as many over the whole range, however many blocks there are), one mass is drawn in each for every window, and
exactly that share of the window's tokens is masked: see `families.masked_lm`. There is no overlap here: each block is
asked only about its own interval.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from diffusionblocks.data.text import TokenSet
from diffusionblocks.errors import InputError
from diffusionblocks.families.masked_lm import (
    MaskedLmBlock,
    MaskedLmEnsemble,
    Network,
    cross_entropy,
    masked_at,
)
from diffusionblocks.marks import MASK, PAD
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.noise import NoiseLaw, masses
from diffusionblocks.partition import Interval
from diffusionblocks.randomness import keyed_generator

LanguageModel = BlockwiseModel | MaskedLmBlock | MaskedLmEnsemble
"""Blocks; or a network, or several, for the whole range."""


@dataclass(frozen=True)
class LikelihoodOptions:
    """How the bound is estimated.

    Attributes:
        draws: masses drawn for each window over the whole range; every block has at least one.
        seed: of the masses and of which tokens are masked.
        batch_size: windows at a time.
    """

    draws: int = 12
    seed: int = 0
    batch_size: int = 64


@dataclass(frozen=True)
class Stratum:
    """A part of a block's interval: masses from lo to hi."""

    block: int
    lo: float
    hi: float


def strata_of(law: NoiseLaw, intervals: Sequence[Interval], draws: int) -> list[Stratum]:
    """The strata of every block, most masked last; `draws` in all where the blocks' masses allow it."""
    found = []
    for block, interval in reversed(list(enumerate(intervals))):
        lo, hi = masses(law, interval.lo, interval.hi)
        count = max(1, round(draws * (hi - lo)))
        ends = [lo + (hi - lo) * k / count for k in range(count + 1)]
        found += [Stratum(block, a, b) for a, b in itertools.pairwise(ends)]
    return found


@torch.no_grad()
def window_nats(
    networks: Sequence[Network],
    law: NoiseLaw,
    strata: Sequence[Stratum],
    x: Tensor,
    y: Tensor,
    generators: Sequence[torch.Generator],
) -> Tensor:
    """Each stratum's part of the bound on -log p(y) of windows, in nats: (B, strata), float64; their sum is the bound.

    Args:
        networks: of each block, what gives logits for (x, z, sigma).
        law: the masking law.
        strata: of all blocks.
        x: what is known (B, n): MASK where there is a token, PAD where there is none.
        y: the tokens (B, n).
        generators: of each window, so that its masks depend on nothing else.
    """
    shape = (len(strata), 1 + x.shape[1])
    uniform = torch.stack([torch.rand(*shape, generator=g, dtype=torch.float64) for g in generators]).to(x.device)
    size, parts = (x != PAD).sum(dim=1), []
    for number, stratum in enumerate(strata):
        mass = stratum.lo + (stratum.hi - stratum.lo) * uniform[:, number, 0]
        sigma = law.icdf(mass)
        masked = masked_at(law, x, sigma, uniform[:, number, 1:])
        losses = cross_entropy(networks[stratum.block], x, y, sigma, masked)
        parts.append((stratum.hi - stratum.lo) * size * losses.double())
    return torch.stack(parts, dim=1)


def evaluate_likelihood(model: LanguageModel, data: TokenSet, options: LikelihoodOptions) -> dict[str, Any]:
    """The bound on the negative log-likelihood of every window, in bits per character, byte and token.

    Args:
        model: blocks, or a control.
        data: the windows; every token is scored once in each stratum.
        options: how it is estimated.

    Returns:
        bits_per_character with its standard error over windows, bits_per_byte, bits_per_token, perplexity per token,
        `blocks` (of each its interval in masses, its share of the bits and their standard error, and its cross-entropy
        per masked token) and `levels` (cross-entropy over the masked share). All are upper bounds: estimates of the
        NELBO.
    """
    networks = networks_of(model)
    first = networks[0]
    device = next(model.parameters()).device
    strata = strata_of(first.law, [network.interval for network in networks], options.draws)
    if data.seq_len > first.seq_len:
        raise InputError("seq_len", data.seq_len, f"at most {first.seq_len}, as in training")
    batches = range(0, len(data), options.batch_size)
    rows, sizes = [], []
    model.eval()
    for start in track(batches, "likelihood", console=Console(stderr=True), transient=True):
        index = torch.arange(start, min(start + options.batch_size, len(data)))
        tokens, valid = data.rows(index)
        x = torch.where(valid, MASK, PAD).to(device)
        generators = [keyed_generator(options.seed, "likelihood", k) for k in index.tolist()]
        sizes.append(valid.sum(dim=1))
        rows.append(window_nats(networks, first.law, strata, x, tokens.to(device), generators).cpu())
    return _summary(torch.cat(rows), torch.cat(sizes).double(), strata, data, options)


def networks_of(model: LanguageModel) -> list[Any]:
    """What is called for each block of the plan: the blocks, or what has the whole range."""
    return model.block_list if isinstance(model, BlockwiseModel) else [model]


def _summary(
    nats: Tensor, sizes: Tensor, strata: Sequence[Stratum], data: TokenSet, options: LikelihoodOptions
) -> dict[str, Any]:
    """nats (windows, strata) of windows of these sizes as bits, with the spread over windows."""
    bits = nats / math.log(2)
    scale = sizes.sum() / data.num_characters  # tokens of a character
    per_token = bits.sum(dim=1) / sizes
    result: dict[str, Any] = {
        "bits_per_character": float(bits.sum() / data.num_characters),
        "se": standard_error(bits.sum(dim=1), sizes) * float(scale),
        "bits_per_byte": float(bits.sum() / data.num_bytes),
        "bits_per_token": float(bits.sum() / sizes.sum()),
        "perplexity_per_token": float(2 ** (bits.sum() / sizes.sum())),
        "tokens": int(sizes.sum()),
        "characters": data.num_characters,
        "bytes": data.num_bytes,
        "windows": len(per_token),
        "draws": len(strata),
        "seed": options.seed,
    }
    result["blocks"] = []
    for block in sorted({stratum.block for stratum in strata}):
        own = [k for k, stratum in enumerate(strata) if stratum.block == block]
        part, mass = bits[:, own].sum(dim=1), [strata[own[0]].lo, strata[own[-1]].hi]
        result["blocks"].append(
            {
                "block": block,
                "masked": mass,
                "bits_per_character": float(part.sum() / data.num_characters),
                "se": standard_error(part, sizes) * float(scale),
                "bits_per_masked_token": float(part.sum() / sizes.sum() / (mass[1] - mass[0])),
            }
        )
    result["levels"] = [
        {
            "block": stratum.block,
            "masked": 0.5 * (stratum.lo + stratum.hi),
            "bits_per_masked_token": float(bits[:, k].sum() / sizes.sum() / (stratum.hi - stratum.lo)),
        }
        for k, stratum in enumerate(strata)
    ]
    return result


def standard_error(bits: Tensor, sizes: Tensor) -> float:
    """Of bits per token over windows (N,) of these sizes: that of a ratio of sums; not a number for one window."""
    rest = bits - bits.sum() / sizes.sum() * sizes
    n = len(bits)
    return float((rest.square().sum() * n / (n - 1)).sqrt() / sizes.sum()) if n > 1 else math.nan
