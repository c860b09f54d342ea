"""How a next token is chosen: options, the draw from a distribution, the bridge from an answer to the next z."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffusionblocks.config import CausalLmConfig
from diffusionblocks.errors import InputError
from diffusionblocks.sampling import PlanStep


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen.

    Attributes:
        max_new_tokens: tokens after the prompt.
        decoding: "average" of the blocks at z = 0, or the "chain" over the plan.
        start: of the chain: z = 0 in its first step, or "noise".
        bridge: from a step's answer to the next z: "sampled", "soft", "top-k" or "hard".
        bridge_temperature: of the answer in the bridge.
        bridge_top_k: tokens that "top-k" keeps.
        temperature: of the distribution that the token is drawn from.
        top_p: share of the most likely tokens that it is drawn from.
        settle: the chain of a token ends where its answer has changed by less than this Kullback-Leibler divergence, in
            nats, since the step before; None: at its last step.
        stop: a token that ends a text; None: no token does.
        seed: text number k has the randomness of (seed, k).
        cache: whether keys and values are kept from token to token.
        stale: in fused, whether a place keeps the keys and values of the z with which its token was found, which costs
            no second reading and is not what was trained (an ablation).

    Raises:
        InputError: a value out of range.
    """

    max_new_tokens: int = 64
    decoding: str = "average"
    start: str = "zero"
    bridge: str = "sampled"
    bridge_temperature: float = 1.0
    bridge_top_k: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    settle: float | None = None
    stop: int | None = None
    seed: int = 0
    cache: bool = True
    stale: bool = False

    def __post_init__(self) -> None:
        choices = {
            "decoding": ("average", "chain"),
            "start": ("zero", "noise"),
            "bridge": ("sampled", "soft", "top-k", "hard"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InputError(name, getattr(self, name), f"one of {', '.join(known)}")
        for name in ("temperature", "bridge_temperature"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(name, value, "a finite number above 0")
        for name in ("max_new_tokens", "bridge_top_k"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "a whole number of at least 1")
        if not 0 < self.top_p <= 1:
            raise InputError("top_p", self.top_p, "a share above 0 and at most 1")
        if self.settle is not None and not (math.isfinite(self.settle) and self.settle > 0):
            raise InputError("settle", self.settle, "a divergence above 0, in nats")
        if self.settle is not None and self.decoding != "chain":
            raise InputError("settle", self.settle, "decoding=chain: an average has no steps to leave out")
        if self.stale and not self.cache:
            raise InputError("stale", True, "cache=True: without a cache no place keeps anything")

    @classmethod
    def of(cls, config: CausalLmConfig, **options: Any) -> "Decoding":
        """Options that are given (None: not), and what the config says about the others.

        Raises:
            InputError: an unknown option, or a value out of range.
        """
        unknown = options.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            raise InputError("option", sorted(unknown), f"one of {', '.join(cls.__dataclass_fields__)}")
        stored = {name: getattr(config, name) for name in cls.__dataclass_fields__ if hasattr(config, name)}
        return cls(**{**stored, **{name: value for name, value in options.items() if value is not None}})


def plain_decoding(**options: Any) -> Decoding:
    """How plain networks decode: their average, which for one is its own answer.

    Raises:
        InputError: the options of a chain, which they do not have.
    """
    given = {name: value for name, value in options.items() if value is not None}
    foreign = sorted(given.keys() & {"start", "bridge", "bridge_temperature", "bridge_top_k", "stale", "settle"})
    if foreign or given.get("decoding", "average") != "average":
        raise InputError(foreign[0] if foreign else "decoding", given.get("decoding"), "a run of blocks")
    try:
        return Decoding(**given)
    except TypeError as error:
        raise InputError("option", sorted(given), f"those of Decoding ({error})") from None


def bridged(
    log_probs: Tensor, z: Tensor | None, step: PlanStep, table: Tensor, how: Decoding, chance: Tensor, eps: Tensor
) -> Tensor:
    """z (B, target_dim) at the next level, from a step's answer.

    "sampled" is the ancestral step with a token drawn from the answer: exact for exact answers at any number of steps.
    The others are Euler's step with the mean target of what they keep.

    Args:
        log_probs: the answer (B, V).
        z: noisy targets before the step; None: none yet, as at an infinite level.
        step: its levels.
        table: targets (V, target_dim).
        how: bridge, bridge_temperature and bridge_top_k.
        chance: (B,) float64, which token is drawn.
        eps: (B, target_dim), unit normal.
    """
    tempered = log_probs / how.bridge_temperature
    if how.bridge == "sampled":
        target = table[drawn(tempered.double().cpu(), chance).to(table.device)]
        ratio = 0.0 if z is None else (step.sigma_next / step.sigma) ** 2
        rest = target if z is None else ratio * z + (1.0 - ratio) * target
        return rest + step.sigma_next * math.sqrt(1.0 - ratio) * eps
    kept = how.bridge_top_k if how.bridge == "top-k" else 1 if how.bridge == "hard" else tempered.shape[-1]
    values, which = tempered.topk(min(kept, tempered.shape[-1]), dim=-1)
    target = (values.softmax(dim=-1)[..., None] * table[which]).sum(dim=-2)
    share = step.sigma_next / step.sigma
    return (1.0 - share) * target if z is None else share * z + (1.0 - share) * target


def change(log_probs: Tensor, before: Tensor) -> Tensor:
    """The Kullback-Leibler divergence (...) of answers (..., V) from those of the step before, in nats."""
    return (log_probs.exp() * (log_probs - before)).sum(dim=-1)


def drawn(log_probs: Tensor, chance: Tensor, top_p: float = 1.0) -> Tensor:
    """One token (B,) of each distribution, in float64.

    Args:
        log_probs: (B, V), up to a constant.
        chance: (B,) uniform.
        top_p: the most likely tokens are kept, as few as have this share together.
    """
    probs, tokens = log_probs.double().softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probs.cumsum(dim=-1) - probs
    probs = probs.masked_fill(before >= top_p, 0.0)
    below = probs.cumsum(dim=-1)
    # The sum of all is 1 but for rounding, and a chance is below 1.
    place = torch.searchsorted(below, (chance * below[:, -1])[:, None], right=True)
    last = (probs > 0).sum(dim=-1, keepdim=True) - 1
    return tokens.gather(1, torch.minimum(place, last))[:, 0]
