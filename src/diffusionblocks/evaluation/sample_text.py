"""Texts from a run or a saved model: from nothing, after a prompt, or around the parts of a text that are given."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from diffusionblocks.block import plan_of
from diffusionblocks.config import read_json
from diffusionblocks.data.tokenizers import Tokenizer, load_tokenizer
from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.opening import open_blocks
from diffusionblocks.families.masked_lm import check_sampling, generate
from diffusionblocks.marks import MASK, PAD
from diffusionblocks.training.data import TOKENIZER_FOLDER
from diffusionblocks.training.run import CONFIG_FILE


@dataclass(frozen=True)
class TextOptions:
    """Which texts, and how they are sampled.

    Attributes:
        prompt: how every text begins.
        infill: a text with blanks instead of a prompt; every blank is one token to be found.
        blank: what marks a blank.
        num: number of texts.
        num_sampling_steps, sampler, temperature: None: as the config says.
        seed: text number k has the randomness of (seed, k).
        batch_size: texts at a time.
        resident: blocks in memory, "all" or "one".
    """

    prompt: str = ""
    infill: str | None = None
    blank: str = "_"
    num: int = 4
    num_sampling_steps: int | None = None
    sampler: str | None = None
    temperature: float | None = None
    seed: int = 0
    batch_size: int = 64
    resident: str = "all"


def sample_texts(
    folder: Path, options: TextOptions, out: Path | None = None, device: str = "cpu"
) -> tuple[list[str], str]:
    """Generate texts, and write them as JSON lines if a file is given.

    Returns:
        The texts, and what was done in a line.

    Raises:
        InputError: a run of another family or without a model, a text that its tokenizer cannot read or that is too
            long, options that do not fit it, no place for the file.
    """
    if out is not None and not out.parent.is_dir():
        raise InputError("out", str(out), "a file in a folder that exists", "make the folder first")
    config, loaders = open_blocks(folder, "masked-lm", options.resident)
    if not (folder / TOKENIZER_FOLDER).is_dir():
        raise InputError("run", str(folder), f"a folder with {TOKENIZER_FOLDER}", "take the run, or its model")
    tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER)
    x = known_tokens(tokenizer, options, window_length(folder)).expand(options.num, -1)
    plan = plan_of(config, options.num_sampling_steps)
    sampler = options.sampler or config.sampler
    temperature = config.temperature if options.temperature is None else options.temperature
    check_sampling(sampler, temperature)
    start = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sampling", total=options.num * len(plan.steps))
        ids = generate(
            loaders,
            x,
            plan,
            sampler=sampler,
            temperature=temperature,
            seed=options.seed,
            batch_size=options.batch_size,
            device=device,
            advance=lambda count: progress.advance(task, count),
        )
    seconds = time.perf_counter() - start
    texts = [tokenizer.decode(row[row != PAD].numpy()) for row in ids]
    if out is not None:
        lines = [json.dumps({"text": text, "seed": options.seed, "number": k}) for k, text in enumerate(texts)]
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    how = f"{sampler}, {len(plan.steps)} steps, temperature {temperature:g}, seed {options.seed}"
    return texts, f"{options.num} texts ({how}, resident: {options.resident}) in {seconds:.1f} s"


def window_length(folder: Path) -> int:
    """Tokens of a window, of a run or a saved model, without reading its weights."""
    if (folder / CONFIG_FILE).exists():
        return read_json(folder / CONFIG_FILE)["seq_len"]
    return read_json(folder / "block-0" / "config.json")["max_position_embeddings"]


def known_tokens(tokenizer: Tokenizer, options: TextOptions, seq_len: int) -> Tensor:
    """What is known of a text (1, n): the tokens of the prompt and then MASK up to seq_len, or the infill's.

    Raises:
        InputError: a prompt and an infill at once, an infill without a blank, nothing left to be found, too long a
            text.
    """
    if options.infill is None:
        given = torch.from_numpy(tokenizer.encode(options.prompt).astype("int64"))
        if len(given) >= seq_len:
            raise InputError("prompt", f"{len(given)} tokens", f"fewer than {seq_len}", "shorten it")
        return torch.cat([given, torch.full((seq_len - len(given),), MASK)])[None]
    if options.prompt:
        raise InputError("prompt", options.prompt, "no prompt besides an infill", "put it into the infill")
    if not options.blank or options.blank not in options.infill:
        raise InputError("infill", options.infill, f"a text with blanks ({options.blank!r})", "one for each token")
    parts = [torch.from_numpy(tokenizer.encode(part).astype("int64")) for part in options.infill.split(options.blank)]
    pieces = [piece for part in parts for piece in (torch.tensor([MASK]), part)][1:]
    known = torch.cat(pieces)
    if len(known) > seq_len:
        raise InputError("infill", f"{len(known)} tokens", f"at most {seq_len}", "shorten it")
    return known[None]
