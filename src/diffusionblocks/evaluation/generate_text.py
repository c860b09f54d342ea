"""Texts that go on after prompts, from a run or a saved model of an autoregressive language model."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from diffusionblocks import model as saved
from diffusionblocks.block import plan_of
from diffusionblocks.data.tokenizers import Tokenizer, load_tokenizer
from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.causal import ONE_STEP, CausalModel, networks_of, stop_token, text_of, words_of
from diffusionblocks.evaluation.opening import family_in
from diffusionblocks.families.causal_choice import Decoding, plain_decoding
from diffusionblocks.families.causal_decoding import generate
from diffusionblocks.families.recurrent_networks import LoopedLm
from diffusionblocks.marks import PAD
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.training.data import TOKENIZER_FOLDER
from diffusionblocks.training.run import load_config, load_trained


@dataclass(frozen=True)
class GenerateOptions:
    """Which texts, and how they are generated; None: as the config says.

    Attributes:
        prompts: what texts go on after; "" for a text from nothing.
        num: texts of each prompt.
        max_new_tokens: tokens after a prompt; None: 64, or as many as fit.
        num_sampling_steps: steps of the chain, or passes of a recurrent network as a loop; one number, or one for each
            prompt.
        decoding, start, bridge, bridge_temperature, bridge_top_k, temperature, top_p, settle, cache, stale: see
            `Decoding`.
        seed: text number k has the randomness of (seed, k).
        batch_size: texts at a time.
    """

    prompts: tuple[str, ...] = ("",)
    num: int = 1
    max_new_tokens: int | None = None
    num_sampling_steps: tuple[int, ...] | None = None
    settle: float | None = None
    decoding: str | None = None
    start: str | None = None
    bridge: str | None = None
    bridge_temperature: float | None = None
    bridge_top_k: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    cache: bool = True
    stale: bool = False
    seed: int = 0
    batch_size: int = 64

    def decoding_options(self) -> dict[str, Any]:
        """Those that are given, as `generate` takes them; whoever names a part of the chain asks for the chain."""
        of_chain = ("start", "bridge", "bridge_temperature", "bridge_top_k", "settle")
        names = ("decoding", *of_chain, "temperature", "top_p", "seed")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if given.keys() & {*of_chain} or self.stale:
            given.setdefault("decoding", "chain")
        given |= {} if self.cache else {"cache": False}
        return given | ({"stale": True} if self.stale else {})


def generate_texts(
    folder: Path, options: GenerateOptions, out: Path | None = None, device: str = "cpu"
) -> tuple[list[tuple[str, str]], str]:
    """Generate texts, and write them as JSON lines if a file is given.

    Returns:
        The prompt and what goes on after it, of each text; and what was done in a line.

    Raises:
        InputError: a run of another family, a prompt that its tokenizer cannot read or that is too long, options that
            do not fit it, no place for the file.
    """
    if out is not None and not out.parent.is_dir():
        raise InputError("out", str(out), "a file in a folder that exists", "make the folder first")
    model, tokenizer = open_model(folder)
    model.to(device)
    given, networks = options.decoding_options(), networks_of(model)
    steps = _steps_of_prompts(options)
    if isinstance(model, BlockwiseModel):
        if steps is not None:
            given.setdefault("decoding", "chain")
        how: Decoding = Decoding.of(model.config, **given)  # type: ignore[arg-type]
        plans = [plan_of(model.config, count) for count in steps or [None] * len(options.prompts)]
    else:
        how, plans = plain_decoding(**given), [ONE_STEP] * len(options.prompts)
        if steps is not None:
            if not isinstance(model, LoopedLm) or len(set(steps)) > 1:
                known = "one number of passes for all prompts" if isinstance(model, LoopedLm) else "a run of blocks"
                raise InputError("num_sampling_steps", steps, known)
            model.num_recurrences = steps[0]
    prompts = [prompt for prompt in options.prompts for _ in range(options.num)]
    plans = [plan for plan in plans for _ in range(options.num)]
    x = padded(prompts, tokenizer)
    given["max_new_tokens"] = new_tokens(x, networks[0].seq_len, options.max_new_tokens)
    start = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("generating", total=len(x) * given["max_new_tokens"])
        ids = generate(
            networks,
            x,
            plans,
            batch_size=options.batch_size,
            advance=lambda count: progress.advance(task, count),
            stop=stop_token(tokenizer),
            **given,
        )
    seconds = time.perf_counter() - start
    texts = [(p, text_of(row, tokenizer)) for p, row in zip(prompts, ids[:, x.shape[1] :], strict=True)]
    if out is not None:
        lines = [
            json.dumps({"prompt": prompt, "text": text, "seed": options.seed, "number": k})
            for k, (prompt, text) in enumerate(texts)
        ]
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = words_of(model, how, plans[0])
    count = ", ".join(dict.fromkeys(str(len(plan.steps)) for plan in plans))
    chain = "" if words["sampler"] != "chain" else f" of {count} steps from {how.start}, bridge {how.bridge}"
    made = f"{words['sampler']}{chain}, temperature {how.temperature:g}, top-p {how.top_p:g}, seed {options.seed}"
    speed = len(x) * given["max_new_tokens"] / seconds
    return texts, f"{len(x)} texts of up to {given['max_new_tokens']} tokens ({made}): {speed:,.0f} tokens/s"


def _steps_of_prompts(options: GenerateOptions) -> list[int] | None:
    """How many steps each prompt has; None: as many as the plan.

    Raises:
        InputError: neither one number nor one for each prompt.
    """
    steps, count = options.num_sampling_steps, len(options.prompts)
    if steps is None:
        return None
    if len(steps) not in (1, count):
        raise InputError("num_sampling_steps", list(steps), f"one number, or one for each of the {count} prompts")
    return list(steps) * (count if len(steps) == 1 else 1)


def open_model(folder: Path) -> tuple[CausalModel, Tokenizer]:
    """The model and the tokenizer of a run, of blocks or a control, or of a saved model.

    Raises:
        InputError: a model of another family, or one without a tokenizer.
    """
    if (found := family_in(folder)) not in ("causal-lm", "recurrent-lm"):
        todo = "see dblocks sample" if found in ("dit", "masked-lm") else "see dblocks predict"
        raise InputError("run", str(folder), f"a model of the family causal-lm or recurrent-lm, not {found}", todo)
    if not (folder / TOKENIZER_FOLDER).is_dir():
        raise InputError("run", str(folder), f"a folder with {TOKENIZER_FOLDER}", "take the run, or its model")
    tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER)
    if (folder / saved.CONFIG_FILE).exists():
        return BlockwiseModel.from_pretrained(folder), tokenizer
    return load_trained(folder, load_config(folder))[0], tokenizer


def padded(prompts: list[str], tokenizer: Tokenizer) -> Tensor:
    """Token ids (N, n) of prompts, with PAD before the shorter ones."""
    ids = [torch.from_numpy(tokenizer.encode(prompt).astype("int64")) for prompt in prompts]
    longest = max(map(len, ids))
    return torch.stack([torch.cat([torch.full((longest - len(row),), PAD), row]) for row in ids])


def new_tokens(x: Tensor, seq_len: int, asked: int | None) -> int:
    """How many tokens to generate after prompts (N, n): those asked for, or 64, or as many as fit.

    Raises:
        InputError: a prompt that leaves no room.
    """
    room = seq_len - x.shape[1]
    if room < 1:
        raise InputError("prompt", f"{x.shape[1]} tokens", f"fewer than {seq_len}, as in training", "shorten it")
    return min(64, room) if asked is None else asked
