"""Time of one update: the sum over the blocks against the network end to end, in one warm run.

    python benchmarks/step_time.py --out benchmarks/results/step-time/step_time.json

Units take turns of several updates, as in training, and the ratio is taken round by round, so that a machine whose
speed drifts does not favour one side. The first updates of every turn are not counted.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

from diffusionblocks.evaluation.costs import step_times
from diffusionblocks.provenance import write_result
from diffusionblocks.recipes import resolve

CASES: dict[str, dict[str, Any]] = {
    "vit-digits": {},
    "65 tokens, d 128, L 12, batch 64": {
        "image_size": 32,
        "patch_size": 4,
        "hidden_size": 128,
        "num_layers": 12,
        "batch_size": 64,
    },
}


def measure(name: str, settings: dict[str, Any], rounds: int, turn: int, skipped: int) -> dict[str, Any]:
    """Rounds of turns of all units; medians and the ratio of every round."""
    config = resolve("vit-digits", flags=settings)
    configs = {"block": config, "end to end": config.model_copy(update={"method": "end-to-end"})}
    times = step_times(configs, rounds=rounds, turn=turn, skipped=skipped)
    ratios = [blocks / whole for blocks, whole in zip(times["block"].rounds, times["end to end"].rounds, strict=True)]
    medians = {f"block {k}": statistics.median(seconds) for k, seconds in enumerate(times["block"].seconds)}
    result = {
        "case": name,
        "num_blocks": config.num_blocks,
        "batch_size": config.batch_size,
        "threads": torch.get_num_threads(),
        "seconds": {**medians, "end to end": statistics.median(times["end to end"].rounds)},
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }
    print(f"{name}: sum of blocks / end to end = {result['ratio']['median']:.3f} ", end="")
    print(f"({result['ratio']['min']:.3f} to {result['ratio']['max']:.3f} over {rounds} rounds)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turn", type=int, default=12, help="updates of a unit in one turn")
    parser.add_argument("--skipped", type=int, default=3, help="updates at the start of a turn that are not counted")
    parser.add_argument("--batch-size", type=int, help="of vit-digits, if other than the recipe's")
    parser.add_argument("--only", help="the case whose name starts like this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = []
    for case, overrides in CASES.items():
        if options.only and not case.startswith(options.only):
            continue
        if options.batch_size and case == "vit-digits":
            overrides = {**overrides, "batch_size": options.batch_size}
        results.append(measure(case, overrides, options.rounds, options.turn, options.skipped))
    if options.out:
        write_result(options.out, {"cases": results})
