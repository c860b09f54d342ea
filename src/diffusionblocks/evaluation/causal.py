"""Scores of an autoregressive language model: bits of a split, statistics of the texts that it generates."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from diffusionblocks.block import plan_of
from diffusionblocks.data.subwords import SubwordTokenizer
from diffusionblocks.data.text import TokenSet
from diffusionblocks.data.tokenizers import Tokenizer
from diffusionblocks.evaluation.depth import DEPTHS, depth_curve, is_recurrent
from diffusionblocks.evaluation.language import EXAMPLES, judges, reference_texts
from diffusionblocks.evaluation.next_token import CausalModel, evaluate_next_token
from diffusionblocks.evaluation.text_scores import score_texts
from diffusionblocks.families.causal_choice import Decoding, plain_decoding
from diffusionblocks.families.causal_decoding import generate
from diffusionblocks.families.causal_networks import CausalLmEnsemble
from diffusionblocks.marks import BEGIN, PAD
from diffusionblocks.memory import forward_memory
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.sampling import PlanStep, SamplingPlan


@dataclass(frozen=True)
class CausalOptions:
    """How an autoregressive language model is scored; None: as its config says.

    Attributes:
        draws: noisy starts of block 0.
        seed: of the noise in the likelihood.
        samples: texts of each sampling seed; 0: none.
        sampling_seeds: the seeds.
        num_sampling_steps, decoding, start, bridge, temperature, top_p: see `families.causal_decoding.Decoding`.
        depths: numbers of passes that a recurrent network is scored with besides; none: no curve.
        depth_windows: windows that it is scored on for that.
        judge: a causal language model for generative perplexity (see `judge`), or None.
        mauve: a model whose features MAUVE takes, or None.
        batch_size: windows, and texts, at a time.
    """

    draws: int = 4
    seed: int = 0
    samples: int = 200
    sampling_seeds: range = range(3)
    num_sampling_steps: int | None = None
    decoding: str | None = None
    start: str | None = None
    bridge: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    depths: tuple[int, ...] = DEPTHS
    depth_windows: int = 256
    judge: str | None = None
    mauve: str | None = None
    batch_size: int = 64


def evaluate_causal_model(model: CausalModel, data: TokenSet, options: CausalOptions) -> dict[str, Any]:
    """Bits per character of every answer, and how generated texts compare with held-out ones.

    Args:
        model: blocks, or a control.
        data: the windows of a split, which are also the held-out texts.
        options: how it is scored.

    Returns:
        What `evaluate_next_token` gives, with `plan`, `tokenizer`, `memory_bytes`, of a recurrent network `depth` (what
        `depth_curve` gives) and, if texts are generated,
        `sampling`, `text` (what `score_texts` gives) and `examples`; for an ensemble also the same of its first member
        alone, as the only one in `members`.

    Raises:
        InputError: options that do not fit; a judge that is not there.
    """
    names = ("decoding", "start", "bridge", "temperature", "top_p")
    asked = {name: getattr(options, name) for name in names}
    if isinstance(model, BlockwiseModel):
        plan = plan_of(model.config, options.num_sampling_steps)
        how = Decoding.of(cast(Any, model.config), **asked)
    else:
        plan, how = ONE_STEP, plain_decoding(**asked)
    judge, features = judges(options.judge, options.mauve)
    result = evaluate_next_token(
        model,
        data,
        plan,
        decoding=how.decoding,
        start=how.start,
        draws=options.draws,
        seed=options.seed,
        batch_size=options.batch_size,
    )
    result |= {"tokenizer": data.tokenizer.name, "memory_bytes": _memory(model, data)}
    if isinstance(model, BlockwiseModel):
        result["plan"] = plan.describe()
    if isinstance(model, CausalLmEnsemble):  # its first member is the shallow network alone
        result["members"] = [evaluate_causal_model(model.members[0], data, options)]  # type: ignore[arg-type]
    if is_recurrent(model) and options.depths:
        result["depth"] = depth_curve(model, data, options.depths, options.depth_windows, options.seed)
    if not options.samples:
        return result
    prompts, texts = torch.zeros(options.samples, 0, dtype=torch.long), []
    stop = stop_token(data.tokenizer)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("generating", total=len(options.sampling_seeds) * options.samples * data.seq_len)
        for seed in options.sampling_seeds:
            ids = generate(
                networks_of(model),
                prompts,
                plan,
                batch_size=options.batch_size,
                advance=lambda count: progress.advance(task, count),
                **asked,
                seed=seed,
                max_new_tokens=data.seq_len,
                stop=stop,
            )
            texts.append([text_of(row, data.tokenizer) for row in ids])
    seeds = {"samples": options.samples, "seeds": list(options.sampling_seeds)}
    result["sampling"] = {**words_of(model, how, plan), "temperature": how.temperature, "top_p": how.top_p, **seeds}
    result["text"] = score_texts(texts, reference_texts(data), judge, features)
    result["examples"] = texts[0][:EXAMPLES]
    return result


ONE_STEP = SamplingPlan((PlanStep(1.0, 0.0, 0),))
"""What stands for a plan where a network has none."""


def networks_of(model: CausalModel) -> list[Any]:
    """What generates: blocks, or plain networks."""
    if isinstance(model, BlockwiseModel):
        return list(model.block_list)
    return list(model.members) if isinstance(model, CausalLmEnsemble) else [model]


def words_of(model: CausalModel, how: Decoding, plan: SamplingPlan) -> dict[str, Any]:
    """How tokens are decoded, for a report: the answer, and of a chain its steps, start and bridge."""
    if not isinstance(model, BlockwiseModel):
        return {"sampler": "average" if isinstance(model, CausalLmEnsemble) else "network"}
    if how.decoding == "average":
        return {"sampler": "average"}
    return {"sampler": "chain", "num_sampling_steps": len(plan.steps), "start": how.start, "bridge": how.bridge}


def stop_token(tokenizer: Tokenizer) -> int | None:
    """The token that ends a text: what is between documents, where it is a token that stands for nothing else."""
    return tokenizer.separator if isinstance(tokenizer, SubwordTokenizer) else None


def text_of(ids: Tensor, tokenizer: Tokenizer) -> str:
    """The text of generated ids (n,), without padding and the token that ends it."""
    stop = stop_token(tokenizer)
    kept = ids[(ids != PAD) & (ids != (PAD if stop is None else stop))]
    return tokenizer.decode(kept.numpy())


def _memory(model: CausalModel, data: TokenSet) -> dict[str, int]:
    """Measured memory of a forward of the first network on 64 windows."""
    network = networks_of(model)[0]
    x = torch.full((64, data.seq_len), BEGIN, device=next(network.parameters()).device)
    if not isinstance(model, BlockwiseModel):
        return forward_memory(network, lambda: network(x))
    z = torch.zeros(*x.shape, network.targets.shape[1], device=x.device)
    sigma = torch.full((64,), network.interval.hi, dtype=torch.float64, device=x.device)
    return forward_memory(network, lambda: network(x, z, sigma))
