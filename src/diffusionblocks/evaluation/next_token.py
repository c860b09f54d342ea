"""Bits of held-out text for autoregressive models: exact where z = 0, a bound for a chain or from a noisy start.

* A block at z = 0 gives a distribution of the next token, and so does the average of blocks: their likelihood is exact.
* From z ~ N(0, sigma_max^2) the model is a mixture over z. The mean of K draws bounds its likelihood in expectation. z
  never comes from the token itself, which would give it away by up to 1 / (2 sigma_max^2) nats.
* What the chain with a sampled bridge emits has a bound, from the path that leads to the token (`chain_nats`). There is
  none for the other bridges, which are deterministic.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from diffusionblocks.data.text import TokenSet
from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.likelihood import standard_error
from diffusionblocks.families.causal_choice import change
from diffusionblocks.families.causal_lm import CausalLmBlock
from diffusionblocks.families.causal_networks import CausalLmEnsemble, PlainCausalLm, average
from diffusionblocks.families.token_loss import CHUNK_LOGITS
from diffusionblocks.marks import PAD, before
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.noise import draw_levels
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.sampling import SamplingPlan

CausalModel = BlockwiseModel | PlainCausalLm | CausalLmEnsemble
"""Blocks, a network trained end to end, or an ensemble of shallow ones."""

Answer = Callable[[int, Tensor | None], Tensor]
"""Log-probabilities (B, n, V) of the tokens in a step of the plan, given z (B, n, target_dim); None: z = 0."""


def chain_nats(
    answer: Answer,
    plan: SamplingPlan,
    table: Tensor,
    y: Tensor,
    eps: Tensor,
    start: str = "zero",
    settle: float | None = None,
) -> tuple[Tensor, Tensor]:
    """A bound on -log p(y) of a chain with a sampled bridge, and the number of its steps, for each token: (B, n) each.

    The chain draws a token from each step's answer and moves z towards it (`sampling.ancestral`). Along the path that
    leads to y, a step costs what its answer takes for y, less what it would take if it saw the step's z':
    CE(p) - CE(softmax(log p + u e)), u = z'/sigma'^2 - z/sigma^2; the last step costs CE(p). It is exact for exact
    posteriors, at any number of steps (ours). Where a chain ends early is told by its z alone, so the bound is one
    for a chain that does, with its last step where it ends.

    Args:
        answer: the answers.
        plan: the steps.
        table: targets (V, target_dim), of unit norm.
        y: tokens (B, n), 0 or more.
        eps: (steps, B, n, target_dim), unit normal.
        start: "zero", as if from an infinite level, which costs nothing; or "noise", which costs 1 / (2 sigma_max^2).
        settle: as in `Decoding`.

    Returns:
        (nats, steps), float64.
    """
    target, z = table[y], None
    total, steps = torch.zeros(2, *y.shape, dtype=torch.float64, device=y.device)
    going, before = torch.ones_like(y, dtype=torch.bool), None
    if start == "noise":
        first = plan.steps[0].sigma
        z = target + first * eps[0]
        total += target.double().square().sum(dim=-1) / (2 * first**2)
    for number, step in enumerate(plan.steps):
        log_probs = answer(number, z).double()
        total -= going * chosen(log_probs, y)
        steps += going
        if settle is not None and before is not None:
            going = going & (change(log_probs, before) >= settle)
        if step.sigma_next == 0 or not bool(going.any()):
            break
        before = log_probs
        ratio = 0.0 if z is None else (step.sigma_next / step.sigma) ** 2
        rest = target if z is None else ratio * z + (1.0 - ratio) * target
        # The first noise is the start's, if it has one.
        noise = eps[number + 1 if start == "noise" else number]
        after = rest + step.sigma_next * math.sqrt(1.0 - ratio) * noise
        u = after.double() / step.sigma_next**2 - (0.0 if z is None else z.double() / step.sigma**2)
        total += going * chosen((log_probs + u @ table.double().T).log_softmax(dim=-1), y)
        z = after
    return total, steps


def chosen(log_probs: Tensor, y: Tensor) -> Tensor:
    """Log-probabilities (B, n) of tokens y (B, n), from those of all (B, n, V)."""
    return log_probs.gather(-1, y[..., None])[..., 0]


@torch.no_grad()
def free_nats(networks: Sequence[Any], x: Tensor, y: Tensor) -> Tensor:
    """-log p(y) of each token for each network at z = 0 and for their average, exact: (networks + 1, B, n) float64.

    Args:
        networks: blocks, or plain networks.
        x, y: what is before each token, and the tokens (B, n), 0 or more.
    """
    states = [network.free(x) for network in networks]
    parts = []
    for rows in _chunks(y.numel(), networks[0].vocabulary.size):
        logits = [net.head(each.flatten(0, 1)[rows]) for net, each in zip(networks, states, strict=True)]
        each = [one.float().log_softmax(dim=-1) for one in logits] + [average(logits)]
        parts.append(torch.stack([-chosen(one.double(), y.flatten()[rows]) for one in each]))
    return torch.cat(parts, dim=1).view(-1, *y.shape)


def _chunks(total: int, size: int) -> Iterator[slice]:
    """Slices of rows whose logits may exist at once."""
    count = max(1, CHUNK_LOGITS // size)
    return (slice(first, first + count) for first in range(0, total, count))


def _level(sigma: float, x: Tensor) -> Tensor:
    return torch.full((len(x),), sigma, dtype=torch.float64, device=x.device)


@torch.no_grad()
def noisy_start_nats(block: CausalLmBlock, sigma: float, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    """-log of the mean of p(y | z) over draws of z ~ N(0, sigma^2), for each token: (B, n) float64.

    Args:
        block: the block, at its level sigma.
        sigma: the level.
        x, y: what is before each token, and the tokens (B, n), 0 or more.
        noise: (2, K, B, n, target_dim), unit normal: of the places that are asked, and of those looked back on.
    """
    log_probs = []
    for asked, looked in zip(*noise, strict=True):
        logits = block.apart(x, sigma * asked, block.targets[y] + sigma * looked, _level(sigma, x))
        log_probs.append(chosen(logits.double().log_softmax(dim=-1), y))
    return math.log(len(log_probs)) - torch.stack(log_probs).logsumexp(dim=0)


@torch.no_grad()
def blocks_chain_nats(
    blocks: Sequence[CausalLmBlock],
    plan: SamplingPlan,
    x: Tensor,
    y: Tensor,
    noise: Tensor,
    start: str,
    settle: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`chain_nats` of blocks, and its steps, for each token (B, n).

    Args:
        blocks: all blocks in order.
        plan: the steps.
        x, y: what is before each token, and the tokens (B, n), 0 or more.
        noise: (2, steps + 1, B, n, target_dim), unit normal: of the path, and of the places that are looked back on.
        start: "zero" or "noise".
        settle: as in `Decoding`.
    """
    path, looked = noise
    table = blocks[0].targets

    def answer(number: int, z: Tensor | None) -> Tensor:
        step = plan.steps[number]
        block = blocks[step.block]
        if z is None:
            logits = block.head(block.free(x))
        else:
            logits = block.apart(x, z, table[y] + step.sigma * looked[number], _level(step.sigma, x))
        return logits.double().log_softmax(dim=-1)

    return chain_nats(answer, plan, table, y, path, start, settle)


@torch.no_grad()
def evaluate_next_token(
    model: CausalModel,
    data: TokenSet,
    plan: SamplingPlan | None,
    *,
    decoding: str = "average",
    start: str = "zero",
    draws: int = 4,
    seed: int = 0,
    batch_size: int = 64,
) -> dict[str, Any]:
    """Bits per character, byte and token of every window, of each answer that a model can give.

    Args:
        model: blocks, or a control.
        data: the windows; every token is scored once.
        plan: of blocks, the steps of the chain.
        decoding: whose bits the result is about, of blocks.
        start: of the chain.
        draws: K of block 0 from a noisy start.
        seed: keys all noise by window.
        batch_size: windows at a time.

    Returns:
        bits_per_character with its standard error over windows, bits_per_byte, bits_per_token, perplexity_per_token and
        `estimate` ("exact" or "bound") of the model's answer; `answers`, the bits of each answer with what it is; and
        `blocks`, of each its interval, its bits at z = 0 and its bits at levels of its own interval, where z helps.

    Raises:
        InputError: windows longer than in training.
    """
    blocks: list[Any] = model.block_list if isinstance(model, BlockwiseModel) else []
    networks: list[Any] = blocks or (list(model.members) if isinstance(model, CausalLmEnsemble) else [model])
    first, device = networks[0], next(model.parameters()).device
    if data.seq_len > first.seq_len:
        raise InputError("seq_len", data.seq_len, f"at most {first.seq_len}, as in training")
    nats, sizes = list[Tensor](), list[Tensor]()
    model.eval()
    for begin in track(range(0, len(data), batch_size), "likelihood", console=Console(stderr=True), transient=True):
        index = torch.arange(begin, min(begin + batch_size, len(data)))
        tokens, valid = data.rows(index)
        x, y = (part.to(device) for part in before(tokens, valid))
        real, y = y != PAD, y.clamp(min=0)
        rows = free_nats(networks, x, y)
        if blocks:
            assert plan is not None
            generators = [keyed_generator(seed, "next token", k) for k in index.tolist()]
            rows = torch.cat([rows, _noisy_nats(blocks, plan, x, y, generators, start, draws)])
        nats.append((rows * real).sum(dim=-1).T.cpu())
        sizes.append(valid.sum(dim=1))
    return _summary(
        torch.cat(nats), torch.cat(sizes).double(), data, model, plan, len(networks), decoding, start, draws, seed
    )


def _noisy_nats(
    blocks: Sequence[CausalLmBlock],
    plan: SamplingPlan,
    x: Tensor,
    y: Tensor,
    generators: Sequence[torch.Generator],
    start: str,
    draws: int,
) -> Tensor:
    """The chain, block 0 from a noisy start, and each block at levels of its own: (2 + B, B, n)."""
    width, steps = blocks[0].targets.shape[1], len(plan.steps)

    def normal(count: int) -> Tensor:
        drawn = [torch.randn(2, count, x.shape[1], width, generator=generator) for generator in generators]
        return torch.stack(drawn, dim=2).to(x.device)

    rows = [blocks_chain_nats(blocks, plan, x, y, normal(steps + 1), start)[0]]
    rows.append(noisy_start_nats(blocks[0], plan.steps[0].sigma, x, y, normal(draws)))
    for block, noise in zip(blocks, normal(len(blocks))[0], strict=True):
        lo, hi = block.interval.lo, block.interval.hi
        levels = torch.cat([draw_levels(block.law, lo, hi, 1, generator) for generator in generators]).to(x.device)
        z = block.targets[y] + (levels[:, None, None] * noise).to(noise.dtype)
        sigma = levels if block.config.noise_per == "sequence" else levels[:, None].expand(y.shape)
        rows.append(-chosen(block(x, z, sigma).double().log_softmax(dim=-1), y))
    return torch.stack(rows)


def _summary(
    nats: Tensor,
    sizes: Tensor,
    data: TokenSet,
    model: CausalModel,
    plan: SamplingPlan | None,
    count: int,
    decoding: str,
    start: str,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """nats (windows, answers) of windows of these sizes as bits, with their spread over windows."""
    bits = nats / math.log(2)
    scale = float(sizes.sum() / data.num_characters)  # tokens of a character

    def score(column: int) -> dict[str, float]:
        mean = float(bits[:, column].sum() / data.num_characters)
        return {"bits_per_character": mean, "se": standard_error(bits[:, column], sizes) * scale}

    answers = [{"answer": "network" if count == 1 else "average", "estimate": "exact", **score(count)}]
    blocks = []
    if isinstance(model, BlockwiseModel):
        assert plan is not None
        answers[0]["answer"] = "average"
        chain = {"answer": "chain", "estimate": "bound", "steps": len(plan.steps), "start": start}
        answers.append({**chain, "bridge": "sampled", **score(count + 1)})
        noisy = {"answer": "block 0 from noise", "estimate": "bound", "draws": draws}
        answers.append({**noisy, **score(count + 2)})
        for block in model.block_list:
            own = {
                "block": block.index,
                "interval": [block.interval.lo, block.interval.hi],
            }
            noisy_bits = score(count + 3 + block.index)["bits_per_character"]
            blocks.append({**own, **score(block.index), "noisy_bits_per_character": noisy_bits})
    which = int(bool(blocks) and decoding == "chain")
    total = bits[:, count + which].sum()
    return {
        **{name: answers[which][name] for name in ("bits_per_character", "se", "estimate", "answer")},
        "bits_per_byte": float(total / data.num_bytes),
        "bits_per_token": float(total / sizes.sum()),
        "perplexity_per_token": float(2 ** (total / sizes.sum())),
        "tokens": int(sizes.sum()),
        "characters": data.num_characters,
        "bytes": data.num_bytes,
        "windows": len(sizes),
        "seed": seed,
        "answers": answers,
        "blocks": blocks,
    }
