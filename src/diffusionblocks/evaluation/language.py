"""Scores of a masked language model: the bound on the likelihood of a split, statistics of the texts it samples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from diffusionblocks.block import held, plan_of
from diffusionblocks.config import MaskedLmConfig
from diffusionblocks.data.text import TokenSet
from diffusionblocks.evaluation.judge import Judge, load_judge
from diffusionblocks.evaluation.likelihood import LanguageModel, LikelihoodOptions, evaluate_likelihood, networks_of
from diffusionblocks.evaluation.text_mauve import HiddenFeatures
from diffusionblocks.evaluation.text_scores import score_texts
from diffusionblocks.families.masked_lm import MaskedLmEnsemble, check_sampling, generate
from diffusionblocks.marks import MASK
from diffusionblocks.memory import forward_memory

EXAMPLES = 8


@dataclass(frozen=True)
class LanguageOptions:
    """How a language model is scored.

    Attributes:
        draws: masses drawn for each window for the bound.
        seed: of its masks.
        samples: texts of each sampling seed; 0: none.
        sampling_seeds: the seeds.
        num_sampling_steps, sampler, temperature: how texts are sampled; None: as the config says.
        judge: a causal language model for generative perplexity (see `judge`), or None.
        mauve: a model whose features MAUVE takes, or None.
        batch_size: windows, and texts, at a time.
    """

    draws: int = 12
    seed: int = 0
    samples: int = 200
    sampling_seeds: range = range(3)
    num_sampling_steps: int | None = None
    sampler: str | None = None
    temperature: float | None = None
    judge: str | None = None
    mauve: str | None = None
    batch_size: int = 64


def evaluate_language_model(model: LanguageModel, data: TokenSet, options: LanguageOptions) -> dict[str, Any]:
    """The bound in bits per character with each block's share, and how sampled texts compare with held-out ones.

    Args:
        model: blocks, or a control.
        data: the windows of a split, which are also the held-out texts.
        options: how it is scored.

    Returns:
        What `evaluate_likelihood` gives, with `plan`, `tokenizer`, `memory_bytes` and, if texts are sampled,
        `sampling`, `text` (what `score_texts` gives) and `examples`; for an ensemble also the same of its first member
        alone, as the only one in `members`.

    Raises:
        InputError: a sampler, temperature or number of steps that does not fit; a judge that is not there.
    """
    networks, config = networks_of(model), cast(MaskedLmConfig, model.config)
    plan = plan_of(config, options.num_sampling_steps)
    sampler = options.sampler or config.sampler
    temperature = config.temperature if options.temperature is None else options.temperature
    check_sampling(sampler, temperature)
    judge, features = judges(options.judge, options.mauve)
    result = evaluate_likelihood(model, data, LikelihoodOptions(options.draws, options.seed, options.batch_size))
    result |= {"plan": plan.describe(), "tokenizer": data.tokenizer.name, "memory_bytes": _memory(model, data)}
    if isinstance(model, MaskedLmEnsemble):  # its first member is the shallow network alone
        result["members"] = [evaluate_language_model(model.members[0], data, options)]  # type: ignore[arg-type]
    if not options.samples:
        return result
    shape = (options.samples, data.seq_len)
    how = {"sampler": sampler, "temperature": temperature, "batch_size": options.batch_size}
    texts = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sampling", total=len(options.sampling_seeds) * options.samples * len(plan.steps))
        for seed in options.sampling_seeds:
            ids = generate(
                held(networks),
                torch.full(shape, MASK),
                plan,
                seed=seed,
                advance=lambda count: progress.advance(task, count),
                **how,
            )
            texts.append([data.tokenizer.decode(row.numpy()) for row in ids])
    steps = {"num_sampling_steps": len(plan.steps), "samples": options.samples, "seeds": list(options.sampling_seeds)}
    result["sampling"] = {"sampler": sampler, "temperature": temperature, **steps}
    result["text"] = score_texts(texts, reference_texts(data), judge, features)
    result["examples"] = texts[0][:EXAMPLES]
    return result


def judges(judge: str | None, mauve: str | None) -> tuple[Judge | None, HiddenFeatures | None]:
    """The models that judge texts; read before anything is computed, so that one that is not there costs no time.

    Raises:
        InputError: a model that is not there.
    """
    judging = None if judge is None else load_judge(judge)
    if mauve is None:
        return judging, None
    return judging, HiddenFeatures(judging if judging is not None and mauve == judge else load_judge(mauve))


def reference_texts(data: TokenSet) -> list[str]:
    """The windows of a split as texts, in an order of their own so that any first part of them is from all over it."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return [data.text_of(int(row)) for row in order]


def _memory(model: LanguageModel, data: TokenSet) -> dict[str, int]:
    """Measured memory of a forward of the first network on 64 windows."""
    network = networks_of(model)[0]
    device = next(network.parameters()).device
    x = torch.full((64, data.seq_len), MASK, device=device)
    call: Callable[[], Tensor] = lambda: network(x, x, network.law.icdf(torch.ones(64)).to(device))  # noqa: E731
    return forward_memory(network, call)
