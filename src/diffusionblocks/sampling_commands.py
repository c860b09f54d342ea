"""Commands that generate, `dblocks sample` and `dblocks generate`: as in `commands`, each a call of the library."""

import argparse
from pathlib import Path

from diffusionblocks.arguments import (
    device_of,
    guidance_of,
    number_of,
    refuse_foreign,
    steps_of,
    whole,
    whole_list,
    whole_or_none,
)
from diffusionblocks.errors import InputError

SAMPLE_FLAGS = {
    "dit": ("classes", "sampler", "guidance", "vae", "grid"),
    "masked-lm": ("prompt", "infill", "blank", "sampler", "temperature"),
}
"""Flags of `dblocks sample` that not every family has."""


def sample(arguments: argparse.Namespace) -> int:
    from diffusionblocks.evaluation.opening import family_in

    family = family_in(Path(arguments.run))
    if family in ("causal-lm", "recurrent-lm"):
        raise InputError("run", arguments.run, "a model of images or masked text", f"dblocks generate {arguments.run}")
    refuse_foreign(arguments, SAMPLE_FLAGS, family)
    return _sample_texts(arguments) if family == "masked-lm" else _sample_images(arguments)


def _sample_texts(arguments: argparse.Namespace) -> int:
    from diffusionblocks.evaluation.sample_text import TextOptions, sample_texts

    options = TextOptions(
        prompt=arguments.prompt or "",
        infill=arguments.infill,
        blank="_" if arguments.blank is None else arguments.blank,
        num=4 if arguments.num is None else whole("num", arguments.num, 1),
        num_sampling_steps=steps_of(arguments),
        sampler=arguments.sampler,
        temperature=number_of("temperature", arguments.temperature),
        seed=whole("seed", arguments.seed, 0),
        batch_size=whole("batch_size", arguments.batch_size, 1),
        resident=arguments.resident,
    )
    out = None if arguments.out is None else Path(arguments.out)
    texts, what = sample_texts(Path(arguments.run), options, out, device_of(arguments.device))
    for number, text in enumerate(texts):
        print(f"--- {number}\n{text}")
    print(f"---\n{what}" + ("" if out is None else f": {out}"))
    return 0


def _sample_images(arguments: argparse.Namespace) -> int:
    from diffusionblocks.evaluation.sample import SampleOptions, sample_run

    options = SampleOptions(
        classes=arguments.classes or "all",
        num=64 if arguments.num is None else whole("num", arguments.num, 1),
        num_sampling_steps=steps_of(arguments),
        sampler=arguments.sampler,
        guidance=guidance_of(arguments.guidance),
        seed=whole("seed", arguments.seed, 0),
        batch_size=whole("batch_size", arguments.batch_size, 1),
        resident=arguments.resident,
        vae=arguments.vae,
    )
    grid, out = Path(arguments.grid or "samples.png"), None if arguments.out is None else Path(arguments.out)
    print(sample_run(Path(arguments.run), options, grid, out, device_of(arguments.device)))
    return 0


def generate(arguments: argparse.Namespace) -> int:
    from diffusionblocks.evaluation.generate_text import GenerateOptions, generate_texts

    options = GenerateOptions(
        prompts=tuple(arguments.prompt or [""]),
        num=whole("num", arguments.num, 1),
        max_new_tokens=whole_or_none("max_new_tokens", arguments.max_new_tokens),
        num_sampling_steps=(
            None
            if arguments.num_sampling_steps is None
            else whole_list("num_sampling_steps", arguments.num_sampling_steps)
        ),
        settle=number_of("settle", arguments.settle),
        decoding=arguments.decoding,
        start=arguments.start,
        bridge=arguments.bridge,
        bridge_temperature=number_of("bridge_temperature", arguments.bridge_temperature),
        bridge_top_k=whole_or_none("bridge_top_k", arguments.bridge_top_k),
        temperature=number_of("temperature", arguments.temperature),
        top_p=number_of("top_p", arguments.top_p),
        cache=not arguments.no_cache,
        stale=arguments.stale_cache,
        seed=whole("seed", arguments.seed, 0),
        batch_size=whole("batch_size", arguments.batch_size, 1),
    )
    out = None if arguments.out is None else Path(arguments.out)
    texts, what = generate_texts(Path(arguments.run), options, out, device_of(arguments.device))
    for number, (prompt, text) in enumerate(texts):
        print(f"--- {number}\n{prompt}{text}")
    print(f"---\n{what}" + ("" if out is None else f": {out}"))
    return 0
