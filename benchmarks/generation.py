"""What autoregressive blocks cost: tokens a second in training and in generation, against the network end to end.

    python benchmarks/generation.py --out benchmarks/results/ar-shakespeare/generation.json

All take turns in one run and ratios are taken round by round. Training is an update of every block; generation is with
caches, by the blocks' average and by chains. With many tokens the readout is a large part, and each block has its own.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from diffusionblocks.block import plan_of
from diffusionblocks.evaluation.causal import ONE_STEP
from diffusionblocks.evaluation.costs import head_share, step_times
from diffusionblocks.families.causal_decoding import generate
from diffusionblocks.provenance import write_result
from diffusionblocks.recipes import resolve
from diffusionblocks.training.networks import build_units

SIDES: dict[str, dict[str, Any]] = {
    "end to end": {"method": "end-to-end"},
    "fused": {},
    "concat": {"context": "concat", "noise_per": "token"},
}
DECODINGS: dict[str, dict[str, Any]] = {
    "average": {},
    "chain": {"decoding": "chain"},
    "chain, stale cache": {"decoding": "chain", "stale": True},
}


def training(settings: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Tokens a second of an update of all units, and its ratio to end to end's in every round."""
    configs: dict[str, Any] = {
        name: resolve("ar-shakespeare", flags={**settings, **side}) for name, side in SIDES.items()
    }
    times = step_times(configs, rounds=rounds, turn=4, skipped=1)
    whole = times["end to end"].rounds
    found: dict[str, Any] = {}
    for name, config in configs.items():
        ratios = [theirs / own for own, theirs in zip(times[name].rounds, whole, strict=True)]
        speed = config.batch_size * config.seq_len / statistics.median(times[name].rounds)
        found[name] = {"tokens_per_second": speed, **_ratio(ratios), "head_share": head_share(config)}
        print(f"training, {name}: {found[name]['ratio']['median']:.3f} of end to end's tokens/s", flush=True)
    return found


def generation(settings: dict[str, Any], rounds: int, texts: int) -> dict[str, Any]:
    """Tokens a second in texts of a window's length, one batch, and the ratio to end to end's in every round."""
    cases: dict[str, Any] = {}
    for name, side in SIDES.items():
        config: Any = resolve("ar-shakespeare", flags={**settings, **side})
        units = [unit.eval() for unit in build_units(config)]
        plan = ONE_STEP if name == "end to end" else plan_of(config.blockwise())
        for words, how in DECODINGS.items() if name != "end to end" else [("", {})]:
            if "stale" not in how or name == "fused":
                cases[f"{name}, {words}".rstrip(", ")] = units, plan, how, config.seq_len
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, (units, plan, how, length) in cases.items():
            start = time.perf_counter()
            generate(
                units, torch.zeros(texts, 0, dtype=torch.long), plan, max_new_tokens=length, batch_size=texts, **how
            )
            if number:  # the first is to warm up
                seconds[name].append(time.perf_counter() - start)
    found: dict[str, Any] = {}
    for name, (*_, length) in cases.items():
        ratios = [theirs / own for own, theirs in zip(seconds[name], seconds["end to end"], strict=True)]
        speed = texts * length / statistics.median(seconds[name])
        found[name] = {"tokens_per_second": speed, **_ratio(ratios)}
        print(f"generation, {name}: {found[name]['ratio']['median']:.3f} of end to end's tokens/s", flush=True)
    return found


def _ratio(ratios: list[float]) -> dict[str, dict[str, float]]:
    return {"ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--vocab-sizes", default="84,2048", help="characters, and subwords")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=32, help="texts that are generated at once")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = []
    for vocab_size in map(int, options.vocab_sizes.split(",")):
        own = {"hidden_size": options.hidden_size, "intermediate_size": None, "vocab_size": vocab_size}
        print(f"{vocab_size} tokens, d {options.hidden_size}")
        speeds = {
            "training": training(own, options.rounds),
            "generation": generation(own, options.rounds, options.texts),
        }
        results.append({**own, "texts": options.texts, "threads": torch.get_num_threads(), **speeds})
    if options.out:
        write_result(options.out, {"cases": results})
