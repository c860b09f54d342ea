"""Generation with autoregressive language models: token by token, each by a chain over the blocks or by their average.

A `Reader` is a network at one noise level with the keys and values of the places that it has read. In concat these are
the clean places, which no level changes, so all steps of a block share them. In fused they carry noisy tokens: once a
token is chosen, the place before it is read again with the token's own noisy target, in the same call as the next
place. All noise is keyed by (seed, number of the text, position, step), so neither the cache, nor padding, nor the
texts beside it change a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from diffusionblocks.errors import InputError
from diffusionblocks.families.causal_choice import Decoding, bridged, change, drawn, plain_decoding
from diffusionblocks.families.causal_lm import CausalLmBlock
from diffusionblocks.families.causal_networks import PlainCausalLm, attention_masks, average
from diffusionblocks.marks import BEGIN, PAD
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.sampling import SamplingPlan


@dataclass
class Texts:
    """A batch of texts that grow: BEGIN and the prompt, after padding, then what is generated.

    Attributes:
        tokens: (B, t), PAD before a shorter prompt's beginning.
        pads: (B,) how many of a text's places are padding.
        numbers: the texts' numbers, which key their noise.
        steps, width: steps of the plan, and width of the targets, that noise is drawn for.
        seed: keys the noise with them.
    """

    tokens: Tensor
    pads: Tensor
    numbers: Sequence[int]
    steps: int
    width: int
    seed: int
    _drawn: dict[tuple[int, int], "Noise"] = field(default_factory=dict)

    def place(self, first: int, last: int) -> Tensor:
        """Positions (B, last - first) of columns in their texts; 0 in the padding."""
        return (torch.arange(first, last, device=self.tokens.device) - self.pads[:, None]).clamp(min=0)

    def noise(self, column: int) -> list["Noise"]:
        """The randomness of each text's token in a column."""
        keys = [(k, column - pad) for k, pad in zip(self.numbers, self.pads.tolist(), strict=True)]
        for key in keys:
            if key not in self._drawn:
                self._drawn[key] = Noise.drawn(self.seed, *key, self.steps, self.width)
        return [self._drawn[key] for key in keys]

    def forget(self, column: int) -> None:
        """Let go of the randomness of all columns before this one: keys and values hold what it led to."""
        pads = dict(zip(self.numbers, self.pads.tolist(), strict=True))
        for key in [(k, place) for k, place in self._drawn if place + pads[k] < column]:
            del self._drawn[key]


@dataclass(frozen=True)
class Noise:
    """The randomness of one token of a text.

    Attributes:
        chance: (1 + steps,) float64, uniform: which token is drawn at the end, and in each step's bridge.
        start: (width,) of the chain's start.
        bridge: (steps, width) of the way from each step to the next.
        context: (steps, width) of the noisy target that later places look back on.
    """

    chance: Tensor
    start: Tensor
    bridge: Tensor
    context: Tensor

    @classmethod
    def drawn(cls, seed: int, number: int, position: int, steps: int, width: int) -> "Noise":
        generator = keyed_generator(seed, "token", number, position)
        chance = torch.rand(1 + steps, dtype=torch.float64, generator=generator)
        rest = torch.randn(1 + 2 * steps, width, generator=generator) if steps else torch.zeros(1, width)
        return cls(chance, rest[0], rest[1 : 1 + steps], rest[1 + steps :])


class Memory:
    """Keys and values of the places that a network has read, and of which."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all of it."""
        self.cache, self.filled = DynamicCache(), 0
        self.passes: list[DynamicCache] = []

    def of_passes(self, count: int) -> list[DynamicCache]:
        """Keys and values of the passes of a recurrent core, but for the last."""
        self.passes += [DynamicCache() for _ in range(count - len(self.passes))]
        return self.passes


@dataclass
class Reader:
    """A network at a noise level, with its memory.

    Attributes:
        network: a block, or a plain network.
        sigma: the level; of no account for a plain network, or where z = 0.
        number: which step of the plan it is; None where z = 0 in every place.
        memory: what it has read; readers of the same clean places share it.
    """

    network: Any
    sigma: float
    number: int | None
    memory: Memory

    def read(self, texts: Texts, z: Tensor | None, stale: bool = False) -> Tensor:
        """Logits (B, V) of the next token, after what is new in the texts has been read.

        Args:
            texts: the texts.
            z: noisy targets (B, target_dim) of the next token; None: 0.
            stale: see `Decoding`.
        """
        tokens, first, last = texts.tokens, self.memory.filled, texts.tokens.shape[1]
        network, size = self.network, len(texts.tokens)
        if isinstance(network, PlainCausalLm):
            embeds, places, kept = network.embed(tokens[:, first:]), texts.place(first, last), last
            with network.reading(places, self.memory):
                return network.head(self._attend(texts, embeds, places, kept))
        level = network.free_level if z is None else self.sigma
        sigma = torch.full((size,), level, dtype=torch.float64, device=tokens.device)
        width = network.targets.shape[1]
        asked = (tokens.new_zeros(size, width, dtype=torch.float32) if z is None else z)[:, None]
        if not network.is_fused:
            clean, noisy = network.embed(tokens[:, first:]), network.enter(asked, sigma)
            embeds = torch.cat([clean, noisy], dim=1)
            with network.at(asked, sigma, clean.shape[1]):
                states = self._attend(texts, embeds, texts.place(first, last + 1), last)
            return network.head(network.with_evidence(states, asked[:, 0], sigma))
        if self.number is None:  # z = 0 in every place: a place is read once
            mixed, kept = asked.new_zeros(size, last - first, width), last
        else:
            found = [self._looked_back(texts, column) for column in range(first + 1, last)]
            mixed, kept = torch.stack([*found, asked[:, 0]], dim=1), last if stale else last - 1
        embeds = network.embed(tokens[:, first:]) + network.enter(mixed, sigma)
        with network.at(mixed, sigma):
            states = self._attend(texts, embeds, texts.place(first, last), kept)
        return network.head(network.with_evidence(states, asked[:, 0], sigma))

    def _looked_back(self, texts: Texts, column: int) -> Tensor:
        """The noisy targets (B, target_dim) of the tokens in a column, as later places see them."""
        eps = torch.stack([noise.context[self.number] for noise in texts.noise(column)])
        tokens = texts.tokens[:, column]
        return self.network.targets[tokens.clamp(min=0)] + self.sigma * eps.to(tokens.device)

    def _attend(self, texts: Texts, embeds: Tensor, places: Tensor, kept: int) -> Tensor:
        """The last hidden state (B, d) after places (B, k) that follow those in memory, of which the first `kept` stay.

        Each sees those before it and itself, without padding.
        """
        memory, count = self.memory, embeds.shape[1]
        base: Any = self.network.backbone.base_model
        masks, total = None, memory.filled + count
        if bool(texts.pads.any()):
            column = torch.arange(total, device=embeds.device)
            visible = (column[memory.filled :, None] >= column)[None] & (column >= texts.pads[:, None])[:, None]
            # In concat a column more than there are tokens: the place that is asked.
            keys = (column - texts.pads[:, None]).clamp(min=0)
            masks = attention_masks(self.network.backbone.config, visible, places, keys, embeds.dtype)
        states = base(
            inputs_embeds=embeds, attention_mask=masks, position_ids=places, cache=memory.cache, use_cache=True
        ).last_hidden_state[:, -1]
        if total > kept:
            memory.cache.crop(kept - total)
        memory.filled = kept
        return states


def readers_of(networks: Sequence[Any], plan: SamplingPlan, how: Decoding) -> list[Reader]:
    """The readers of a decoding, in order: of each network at z = 0, or of each step of the plan."""
    if how.decoding == "average":
        return [Reader(network, 0.0, None, Memory()) for network in networks]
    of_block = [Memory() for _ in networks]
    readers = []
    for number, step in enumerate(plan.steps):
        network = networks[step.block]
        free = number == 0 and how.start == "zero"
        readers.append(
            Reader(
                network, step.sigma, None if free else number, Memory() if network.is_fused else of_block[step.block]
            )
        )
    return readers


@torch.no_grad()
def generate(
    networks: Sequence[Any],
    x: Tensor,
    plan: SamplingPlan | Sequence[SamplingPlan],
    *,
    batch_size: int = 64,
    advance: Callable[[int], None] = lambda tokens: None,
    **options: Any,
) -> Tensor:
    """Go on after prompts, token by token.

    Args:
        networks: all blocks in order; or plain networks, whose log-probabilities are averaged.
        x: prompts (N, n), n may be 0; PAD before those that are shorter.
        plan: the steps of the chain; or those of each text.
        batch_size: texts at a time.
        advance: called with the number of texts after each token, to show progress.
        **options: of `Decoding`; what is not given is as the blocks' config says.

    Returns:
        Token ids (N, n + max_new_tokens) on the CPU: the prompts as they are, then what was generated; PAD after the
        token `stop`.

    Raises:
        InputError: options out of range, a prompt too long or with ids that are not there, padding elsewhere.
    """
    first = networks[0]
    how = Decoding.of(first.config, **options) if isinstance(first, CausalLmBlock) else plain_decoding(**options)
    if how.stale and not (isinstance(first, CausalLmBlock) and first.is_fused):
        raise InputError("stale", True, "blocks with context=fused: others have nothing that grows stale")
    x = check_prompts(x.cpu(), first, how.max_new_tokens)
    plans = [plan] * len(x) if isinstance(plan, SamplingPlan) else list(plan)
    if len(plans) != len(x):
        raise InputError("plan", len(plans), f"one plan, or one for each of the {len(x)} texts")
    found = torch.full((len(x), x.shape[1] + how.max_new_tokens), PAD)
    for one in dict.fromkeys(plans):
        of_it = [number for number, other in enumerate(plans) if other == one]
        for first_row in range(0, len(of_it), batch_size):
            rows = of_it[first_row : first_row + batch_size]
            found[rows] = _generated(networks, x[rows], rows, one, how, advance)
    return found


def _generated(
    networks: Sequence[Any],
    x: Tensor,
    numbers: Sequence[int],
    plan: SamplingPlan,
    how: Decoding,
    advance: Callable[[int], Any],
) -> Tensor:
    """One batch of `generate`."""
    device = next(networks[0].parameters()).device
    chain = how.decoding == "chain"
    readers = readers_of(networks, plan, how)
    # The beginning is next to the prompt, and padding before it.
    pads, column = (x == PAD).sum(dim=1), torch.arange(1 + x.shape[1])
    tokens = torch.cat([torch.full((len(x), 1), PAD), x], dim=1).masked_fill(column == pads[:, None], BEGIN)
    width = networks[0].targets.shape[1] if chain else 1
    texts = Texts(tokens.to(device), pads.to(device), numbers, len(plan.steps) if chain else 0, width, how.seed)
    ended = torch.zeros(len(x), dtype=torch.bool)
    for _ in range(how.max_new_tokens):
        if not how.cache:
            for reader in readers:
                reader.memory.clear()
        noise = texts.noise(texts.tokens.shape[1])
        log_probs = (
            _chain(readers, texts, plan, how, noise) if chain else average([r.read(texts, None) for r in readers])
        )
        chance = torch.stack([one.chance[0] for one in noise])
        token = drawn(log_probs.double().cpu() / how.temperature, chance, how.top_p)
        token = torch.where(ended, PAD, token)
        ended |= token == (PAD if how.stop is None else how.stop)
        if how.cache:
            texts.forget(texts.tokens.shape[1])
        texts.tokens = torch.cat([texts.tokens, token[:, None].to(device)], dim=1)
        advance(len(x))
        if bool(ended.all()):
            break
    found = texts.tokens[:, 1 + x.shape[1] :].cpu()
    rest = torch.full((len(x), how.max_new_tokens - found.shape[1]), PAD)
    return torch.cat([x, found, rest], dim=1)


def _chain(
    readers: Sequence[Reader], texts: Texts, plan: SamplingPlan, how: Decoding, noise: Sequence[Noise]
) -> Tensor:
    """Log-probabilities (B, V) of the next token after the last step of the plan, or the one at which they settle.

    A step that no text needs is left out; it reads the token's place when a later token asks for it.
    """
    device = texts.tokens.device
    answer, settled = torch.zeros(0), torch.zeros(len(texts.tokens), dtype=torch.bool, device=device)
    z: Tensor | None = None
    if how.start == "noise":
        z = plan.steps[0].sigma * torch.stack([one.start for one in noise]).to(device)
    for number, (reader, step) in enumerate(zip(readers, plan.steps, strict=True)):
        before, log_probs = answer, reader.read(texts, z, how.stale).float().log_softmax(dim=-1)
        answer = log_probs if number == 0 else torch.where(settled[:, None], before, log_probs)
        if how.settle is not None and number > 0:
            settled = settled | (change(log_probs, before) < how.settle)
            if bool(settled.all()):
                break
        if step.sigma_next > 0:
            eps = torch.stack([one.bridge[number] for one in noise]).to(device)
            chance = torch.stack([one.chance[1 + number] for one in noise])
            z = bridged(log_probs, z, step, reader.network.targets, how, chance, eps)
    return answer


def check_prompts(x: Tensor, network: Any, max_new_tokens: int) -> Tensor:
    """Refuse prompts that are no (N, n) ids, that leave no room for new tokens, or with padding after a token."""
    if x.ndim != 2 or x.is_floating_point() or not len(x):
        raise InputError("x", tuple(x.shape), "prompts, token ids (N, n)")
    room = network.seq_len - x.shape[1]
    if max_new_tokens > room:
        todo = f"at most {room} new tokens fit" if room > 0 else "shorten the prompt"
        raise InputError(
            "max_new_tokens", max_new_tokens, f"with a prompt of {x.shape[1]} at most seq_len={network.seq_len}", todo
        )
    size = network.vocabulary.size
    outside = x[(x != PAD) & ((x < 0) | (x >= size))]
    if len(outside):
        raise InputError("token ids", int(outside[0]), f"ids in 0..{size - 1}, or PAD = {PAD} before a prompt")
    if bool(((x[:, 1:] == PAD) & (x[:, :-1] != PAD)).any()):
        raise InputError("x", "padding after a token", "padding before the prompts alone", "pad on the left")
    return x
