"""How good a classifier of blocks is, and where it loses: every block alone, in the chain, and on true noise.

The oracle of a block sees e_y + sigma * eps for the true label y. The chain-to-oracle gap says what a block loses to
what the blocks before it handed over; the drop on scrambled images says whether it looks at the image at all.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from diffusionblocks.block import plan_of
from diffusionblocks.data.images import ImageSet, to_float
from diffusionblocks.families.vit import Decoding, PlainVit, VitBlock, VitEnsemble, chain, decoding_of, log_probs
from diffusionblocks.memory import forward_memory
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.sampling import Start, initial_state
from diffusionblocks.targets import mean_pairwise_cosine

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class EvalOptions:
    """How to decode.

    Attributes:
        start: where the chain starts; None: as the model's config says.
        num_sampling_steps: steps of the plan; None: the stored plan's.
        chains: with start "noise", how many chains to average.
        decoding: what counts as the model's answer, "chain" or "average"; None: the chain if one of the above is set,
            else as the model's config says.
        batch_size: samples at a time; the result does not depend on it.
        seed: seed of all noise.
    """

    start: Start | None = None
    num_sampling_steps: int | None = None
    chains: int = 1
    decoding: Decoding | None = None
    batch_size: int = 250
    seed: int = 0


@torch.no_grad()
def evaluate_plain(
    network: PlainVit | VitEnsemble, images: ImageSet, options: EvalOptions | None = None
) -> dict[str, Any]:
    """Accuracy and cross-entropy (nats) of a control over every sample, and the memory of a forward.

    For an ensemble also the scores of each member, under "members".
    """
    options = options or EvalOptions()
    network.eval()
    device = next(network.parameters()).device

    def scores(part: nn.Module) -> dict[str, float]:
        logs = [log_probs(part(x.to(device))).cpu() for x, _, _ in _batches(images, options.batch_size)]
        return _scores(torch.cat(logs), images.labels)

    x = to_float(images.images[: options.batch_size]).to(device)
    result: dict[str, Any] = {**scores(network), "memory_bytes": forward_memory(network, lambda: network(x))}
    if isinstance(network, VitEnsemble):
        result["members"] = [scores(member) for member in network.members]
    return result


@torch.no_grad()
def evaluate_blocks(model: BlockwiseModel, images: ImageSet, options: EvalOptions | None = None) -> dict[str, Any]:
    """Score every sample by the chain, after each block, by each block on true noise, and by z-free averaging.

    Args:
        model: the blocks.
        images: the split to score.
        options: how to decode.

    Returns:
        accuracy and cross_entropy (nats) of the chosen decoding; `average` and `chain` scores; per block: the chain
        after it, the oracle, the oracle on scrambled images, the gap, alone at z = 0; the plan; memory of a forward.
    """
    options = options or EvalOptions()
    model.eval()
    plan = plan_of(model.config, options.num_sampling_steps)
    config: Any = model.config
    start: Start = options.start or config.start
    shape = (len(images), model.targets.shape[1])
    states = [
        initial_state(shape, plan, start, keyed_generator(options.seed, "start", k)) for k in range(options.chains)
    ]
    if options.chains > 1 and start == "zero":
        model.decode(torch.zeros(1), start=start, chains=options.chains)  # raises: such chains are all the same
    # Of the whole split at once, so that a sample's noise does not depend on the batch size.
    noise = torch.randn(*shape, generator=keyed_generator(options.seed, "oracle"))
    parts = [
        _score_batch(model, plan, x, y, [z[rows] for z in states], noise[rows], other)
        for (x, y, rows), other in _shown(
            zip(
                _batches(images, options.batch_size),
                _batches(_scrambled(images, options.seed), options.batch_size),
                strict=True,
            ),
            math.ceil(len(images) / options.batch_size),
        )
    ]
    logs = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    last, labels = plan.last_steps(), images.labels
    decoding = decoding_of(
        config,
        decoding=options.decoding,
        start=options.start,
        chains=options.chains,
        num_sampling_steps=options.num_sampling_steps,
    )
    chosen = logs["average"] if decoding == "average" else logs[f"step {len(plan.steps) - 1}"]
    blocks = []
    for block in range(model.config.num_blocks):
        after, oracle = _scores(logs[f"step {last[block]}"], labels), _scores(logs[f"oracle {block}"], labels)
        scrambled, alone = _scores(logs[f"scrambled {block}"], labels), _scores(logs[f"alone {block}"], labels)
        blocks.append(
            {
                "block": block,
                "sigma": plan.steps[last[block]].sigma,
                "chain_after": after,
                "oracle": oracle,
                "oracle_gap": oracle["accuracy"] - after["accuracy"],
                "scrambled": scrambled,
                "image_drop": oracle["accuracy"] - scrambled["accuracy"],
                "alone": alone,
            }
        )
    x = to_float(images.images[: options.batch_size]).to(model.targets.device)
    return {
        **_scores(chosen, labels),
        "decoding": decoding,
        "chain": _scores(logs[f"step {len(plan.steps) - 1}"], labels),
        "average": _scores(logs["average"], labels),
        "chain_gain": blocks[-1]["chain_after"]["accuracy"] - blocks[0]["chain_after"]["accuracy"],
        "blocks": blocks,
        "start": start,
        "chains": options.chains,
        "plan": plan.describe(),
        "num_sampling_steps": len(plan.steps),
        "targets_mean_cosine": mean_pairwise_cosine(model.targets),
        "memory_bytes": forward_memory(model, lambda: model(x)),
    }


def _score_batch(
    model: BlockwiseModel,
    plan: Any,
    x: Tensor,
    y: Tensor,
    states: list[Tensor],
    noise: Tensor,
    other: tuple[Tensor, Tensor, slice],
) -> dict[str, Tensor]:
    """Log-probabilities (B, K) of one batch under every way of asking."""
    blocks: list[VitBlock] = list(model.blocks)  # type: ignore[arg-type]
    device = model.targets.device
    x, y, noise, scrambled = x.to(device), y.to(device), noise.to(device), other[0].to(device)
    runs = [chain(blocks, x, z.to(device), plan) for z in states]
    logs = {
        f"step {k}": torch.stack([run[k] for run in runs]).logsumexp(0).log_softmax(-1) for k in range(len(plan.steps))
    }
    last, first = plan.last_steps(), plan.first_sigmas()
    for block in blocks:
        k = block.index
        sigma = torch.full((len(x),), plan.steps[last[k]].sigma, dtype=torch.float64, device=device)
        z = block.noisy_target(y, sigma, noise)
        logs[f"oracle {k}"] = log_probs(block(x, z, sigma))
        logs[f"scrambled {k}"] = log_probs(block(scrambled, z, sigma))
        logs[f"alone {k}"] = log_probs(block(x, torch.zeros_like(z), torch.full_like(sigma, first[k])))
    alone = torch.stack([logs[f"alone {block.index}"] for block in blocks])
    logs["average"] = alone.mean(0).log_softmax(-1)
    return {name: value.cpu() for name, value in logs.items()}


def _scores(logs: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "accuracy": float((logs.argmax(dim=-1) == labels).double().mean()),
        "cross_entropy": float(torch.nn.functional.nll_loss(logs.double(), labels)),
    }


def _batches(images: ImageSet, size: int) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """Every sample in order, the last batch as short as it is."""
    for first in range(0, len(images), size):
        rows = slice(first, min(first + size, len(images)))
        yield to_float(images.images[rows]), images.labels[rows], rows


def _shown(batches: Iterable[Batch], count: int) -> Iterable[Batch]:
    """The batches, with a progress bar on the terminal where there are many."""
    console = Console(stderr=True)
    return track(batches, "scoring", total=count, console=console, transient=True, disable=count < 20)


def _scrambled(images: ImageSet, seed: int) -> ImageSet:
    """The same labels with other samples' images: a cyclic shift of a random order, so none keeps its own."""
    order = torch.randperm(len(images), generator=keyed_generator(seed, "scramble"))
    source = torch.empty_like(order)
    source[order] = order.roll(1)
    return ImageSet(images.images[source], images.labels, images.classes)
