"""Masked diffusion language models with `transformers`' ModernBERT: y is a text, z the text with some tokens masked.

x says what is known beforehand: a token id (a prompt, which stays), MASK where a token is to be found, PAD where there
is none. Training and evaluation mask an exact number of tokens: at a level of mass u, k = ceil(u n) of n tokens. Then
the mean over u of n times the mean cross-entropy of the k masked tokens is a bound on -log p(y) that needs no cut-off
near t = 0, is exact for the exact posterior, and is a sum over any cut of u into blocks (the bound of Section 3 and
Appendix B of the paper, in another form: ours).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from diffusionblocks.block import Block, BlockLoader, NoiseDraw, held
from diffusionblocks.config import MaskedLmConfig
from diffusionblocks.errors import InputError
from diffusionblocks.marks import MASK, PAD
from diffusionblocks.noise import NoiseLaw, masses
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.sampling import PlanStep, SamplingPlan

Network = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Logits (B, n, V) from (x, z, sigma): a block, or an ensemble."""


class MaskedLmBlock(Block):
    """A block of a masked language model; see `Block` for arguments.

    The last row of the network's embedding is the mask token; no token of a text has its id and none is ever emitted.
    """

    family = "masked-lm"
    backbone_classes = (ModernBertForMaskedLM,)
    layers_path = "model.layers"
    stratified = True

    config: MaskedLmConfig

    def __init__(self, backbone: PreTrainedModel, config: MaskedLmConfig, index: int, targets: None = None):
        super().__init__(backbone, config, index, targets)
        network: Any = backbone.config
        if network.pad_token_id is not None:
            raise InputError("pad_token_id", network.pad_token_id, "none: padding is told by x", "set it to None")
        self.mask_id: int = network.vocab_size - 1
        self.seq_len: int = network.max_position_embeddings

    @classmethod
    def example_input(cls, backbone_config: ModernBertConfig) -> dict[str, Tensor]:
        return {"input_ids": torch.zeros(1, 2, dtype=torch.long)}

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (self.seq_len,)

    def draw_noise(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Uniform numbers (B, seq_len): the positions with the smallest are masked."""
        return torch.rand(batch_size, *self.target_shape, generator=generator)

    def run_backbone(self, x: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        """Logits (B, n, V) of the tokens at every position, without the mask token, for z (B, n)."""
        real = x != PAD
        # The mask is a float one, as attention adds it, and is made here so that nothing waits for the device.
        dtype = next(self.backbone.parameters()).dtype
        least = torch.finfo(dtype).min
        bias = torch.zeros(x.shape, device=x.device, dtype=dtype).masked_fill(~real, least)
        bias = bias[:, None, None, :].expand(-1, 1, x.shape[1], -1)
        masks = {"full_attention": bias}
        if "sliding_attention" in cast(Any, self.backbone.config).layer_types:
            masks["sliding_attention"] = bias.masked_fill(self._far(x.shape[1], x.device), least)
        ids = torch.where(real & (z != MASK), z, self.mask_id)
        return self.backbone(input_ids=ids, attention_mask=masks).logits[..., : self.mask_id]

    def _far(self, n: int, device: torch.device) -> Tensor:
        """Pairs of positions (n, n) that a layer with local attention does not connect."""
        place = torch.arange(n, device=device)
        return (place[:, None] - place).abs() > cast(Any, self.backbone.config).sliding_window

    def denoised(self, readout: Tensor) -> Tensor:
        """Probabilities of the tokens (B, n, V)."""
        return readout.float().softmax(dim=-1)

    def loss(self, x: Tensor, y: Tensor, draw: NoiseDraw) -> Tensor:
        """Mean cross-entropy of a sequence's masked tokens, (B,) float32 in nats; 0 where there is none.

        With weight "nelbo" its mean over levels of the whole range is the bound per token; with "tokens" (ours) a
        sequence counts by the number of its masked tokens, which changes no optimum and has less variance.

        Args:
            x: what is known (B, n), n <= seq_len.
            y: token ids (B, n); those under PAD do not matter.
            draw: noise.
        """
        masked = masked_at(self.law, x, draw.sigma, draw.noise[:, : x.shape[1]])
        loss, count = cross_entropy(self, x, y, draw.sigma, masked), masked.sum(dim=1)
        if self.config.weight == "tokens":
            # The mean count over the block's interval, for a loss of the same scale; not over the batch, whose rows
            # must not depend on each other.
            lo, hi = masses(self.law, self.trained_on.lo, self.trained_on.hi)
            loss = loss * count / ((x != PAD).sum(dim=1) * 0.5 * (lo + hi)).clamp(min=1)
        return loss

    @classmethod
    def decoding_options(cls, config: Any, num_sampling_steps: Any = None, **options: Any) -> dict[str, Any]:
        return {"sampler": config.sampler, "temperature": config.temperature, **options}

    @classmethod
    def decode(cls, blocks: Sequence[Block], x: Tensor, plan: SamplingPlan, **options: Any) -> Tensor:
        """Token ids (B, n) in which every MASK of x (B, n) is filled in; options as for `generate`."""
        unknown = options.keys() - {"sampler", "temperature", "seed", "batch_size"}
        if unknown:
            raise InputError("option", sorted(unknown), "one of sampler, temperature, seed, batch_size")
        return generate(held(blocks), x, plan, **options)

    @classmethod
    def output(cls, decoded: Tensor, labels: Tensor | None) -> GenerateDecoderOnlyOutput:
        """Token ids as the sequences that transformers' generation gives; labels are refused."""
        if labels is not None:
            raise InputError("labels", tuple(labels.shape), "none: a loss needs a noise level", "use block.loss")
        return GenerateDecoderOnlyOutput(sequences=cast(Any, decoded))


def masked_at(law: NoiseLaw, x: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
    """Which positions (B, n) are masked at sigma (B,): ceil(mass n) of a text's n tokens, those of least noise (B, n).

    Tokens that x gives count among the n and are never masked; padding does not count. At least one is masked.
    """
    free = x == MASK
    # float64, less a rounding error, so that a mass of exactly k/n masks k.
    count = (law.cdf(sigma).to(x.device) * (x != PAD).sum(dim=1) - 1e-9).ceil().clamp(min=1)
    rank = noise.masked_fill(~free, math.inf).argsort(dim=1).argsort(dim=1)
    return (rank < count[:, None]) & free


def cross_entropy(network: Network, x: Tensor, y: Tensor, sigma: Tensor, masked: Tensor) -> Tensor:
    """Mean cross-entropy over the positions that are masked (B, n) of tokens y (B, n), (B,) float32, nats."""
    y = torch.where(x == PAD, 0, y)
    logits = network(x, torch.where(masked, MASK, y), sigma)
    losses = functional.cross_entropy(logits.float().flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    return (losses * masked).sum(dim=1) / masked.sum(dim=1).clamp(min=1)


class MaskedLmEnsemble(nn.Module):
    """A control: networks trained apart over the whole range, whose log-probabilities are averaged; called as a block.

    Args:
        members: the networks, blocks of one and the same config.
    """

    def __init__(self, members: Sequence[MaskedLmBlock]):
        super().__init__()
        self.members = nn.ModuleList(members)
        first = members[0]
        self.config, self.law, self.interval = first.config, first.law, first.interval
        self.seq_len, self.mask_id = first.seq_len, first.mask_id

    def forward(self, x: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        """Log-probabilities (B, n, V): the members' mean, normalised; arguments as for a block."""
        each = [member(x, z, sigma).float().log_softmax(dim=-1) for member in self.members]
        return torch.stack(each).mean(dim=0).log_softmax(dim=-1)


MaskedLmBlock.ensemble = MaskedLmEnsemble


@torch.no_grad()
def generate(
    loaders: Sequence[BlockLoader],
    x: Tensor,
    plan: SamplingPlan,
    *,
    sampler: str = "counts",
    temperature: float = 1.0,
    seed: int = 0,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    advance: Callable[[int], None] = lambda texts: None,
) -> Tensor:
    """Fill in every MASK by ancestral sampling, block by block: each block is loaded once, and one at a time is enough.

    Every position has a mass at which it is revealed, drawn beforehand; a step down to mass u reveals those above it,
    each with a token from the posterior that the step's block gives, in float64. Under "ancestral" these masses are
    uniform and independent; under "counts" they are spread evenly in random order, so that the masked share is that of
    the plan in every step, as in training. A text of which a part is given begins where that share of it is masked:
    blocks that are for more masks than it has are not run.

    Args:
        loaders: for each block of the plan, what gives it.
        x: what is known (N, n): token ids, MASK where a token is to be found, PAD where there is none.
        plan: the steps.
        sampler: "counts" or "ancestral".
        temperature: of the tokens' distribution.
        seed: text number k has the randomness of the key (seed, k), whatever is generated beside it.
        batch_size: texts at a time.
        device: where to compute; None: where each block is.
        advance: called with a number of texts after each step of a batch, to show progress.

    Returns:
        Token ids (N, n) on the CPU; PAD stays.

    Raises:
        InputError: an unknown sampler, a temperature that is not above 0, ids that are not there, too long a text.
    """
    check_sampling(sampler, temperature)
    x = x.cpu()
    z, plans = x.clone(), list[Reveal]()
    batches = [range(first, min(first + batch_size, len(x))) for first in range(0, len(x), batch_size)]
    for index, load in enumerate(loaders):
        block = load()
        if device is not None:
            block.to(device)
        if not plans:
            check_known(block, x)
            plans = [Reveal.drawn(x[rows.start : rows.stop], rows, sampler, seed) for rows in batches]
        for rows, reveal in zip(batches, plans, strict=True):
            texts = z[rows.start : rows.stop]
            for step in plan.steps:
                if step.block == index:
                    reveal_step(block, texts, step, reveal, temperature)
                    advance(len(rows))
        # Let go of it before the next one is loaded.
        del block
    return z


@dataclass(frozen=True)
class Reveal:
    """The randomness of a batch of texts: all of it, drawn before the first step.

    Attributes:
        mass: (B, n) float64; a position is masked at masses above its own. -1 where nothing is to be found.
        chance: (B, n) float64, uniform: which token is drawn.
        share: (B,) float64, the masked share that a text begins with.
    """

    mass: Tensor
    chance: Tensor
    share: Tensor

    @classmethod
    def drawn(cls, x: Tensor, numbers: range, sampler: str, seed: int) -> "Reveal":
        """For texts x (B, n) of these numbers."""
        # By position, so that padding after a text does not change its own.
        shape, generators = (x.shape[1], 2), [keyed_generator(seed, "text", k) for k in numbers]
        drawn = torch.stack([torch.rand(*shape, generator=g, dtype=torch.float64) for g in generators])
        order, chance = drawn.movedim(-1, 0).contiguous()
        free, size = x == MASK, (x != PAD).sum(dim=1).clamp(min=1)
        share = free.sum(dim=1) / size.double()
        if sampler == "ancestral":
            mass = order * share[:, None]
        else:
            rank = order.masked_fill(~free, math.inf).argsort(dim=1).argsort(dim=1)
            # The rounding error of `masked_at`, so that a level of exactly k/n has k masked here too.
            mass = (rank.double() + 1e-9) / size[:, None]
        return cls(mass.masked_fill(~free, -1.0), chance, share)


def reveal_step(block: MaskedLmBlock, z: Tensor, step: PlanStep, reveal: Reveal, temperature: float) -> None:
    """Take one step in texts z (B, n): ancestral sampling from its level to its next; one call of the block, or none.

    No call is made where the step reveals nothing in any text: for a text that begins with a part of its tokens, or
    with more steps than tokens.
    """
    mass, after = block.law.cdf(torch.tensor([step.sigma, step.sigma_next], dtype=torch.float64)).tolist()
    now = (reveal.mass >= after) & (reveal.mass < mass)
    if not now.any():
        return
    place = next(block.parameters()).device
    sigma = block.law.icdf(reveal.share.clamp(max=mass))
    logits = block(torch.where(z == PAD, PAD, MASK).to(place), z.to(place), sigma.to(place))
    below = (logits[now.to(place)].double() / temperature).softmax(dim=-1).cumsum(dim=-1).cpu()
    # The sum of all is 1 but for rounding, and a chance is below 1.
    drawn = torch.searchsorted(below / below[:, -1:], reveal.chance[now][:, None], right=True)[:, 0]
    z[now] = drawn.clamp(max=block.mask_id - 1)


def check_sampling(sampler: str, temperature: float) -> None:
    """Refuse a sampler that is not there, or a temperature that is none."""
    if sampler not in ("counts", "ancestral"):
        raise InputError("sampler", sampler, "counts or ancestral")
    if not (math.isfinite(temperature) and temperature > 0):
        raise InputError("temperature", temperature, "a finite number above 0")


def check_known(block: MaskedLmBlock, x: Tensor) -> None:
    """Refuse texts that are no (N, n) ids, longer than the network was made for, or with ids that are not there."""
    if x.ndim != 2 or x.is_floating_point() or not x.numel():
        raise InputError("x", tuple(x.shape), "token ids (N, n)")
    if x.shape[1] > block.seq_len:
        raise InputError("seq_len", x.shape[1], f"at most {block.seq_len}, as in training", "shorten the texts")
    if int(x.min()) < MASK or int(x.max()) >= block.mask_id:
        found = [int(x.min()), int(x.max())]
        raise InputError("token ids", found, f"ids in 0..{block.mask_id - 1}, or MASK = {MASK} and PAD = {PAD}")
