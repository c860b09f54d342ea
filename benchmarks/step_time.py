"""Time of one update: the sum over the blocks against the network end to end, in one warm run.

    python benchmarks/step_time.py --out benchmarks/results/step-time/step_time.json

Units take turns of several updates, as in training, and the ratio is taken round by round, so that a machine whose
speed drifts does not favour one side. The first updates of every turn are not counted.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import ViTForImageClassification

from diffusionblocks.families.vit import PlainVit
from diffusionblocks.provenance import write_result
from diffusionblocks.recipes import RunConfig, resolve
from diffusionblocks.training.run import backbone_config, build_units
from diffusionblocks.training.step import make_optimizer, train_step

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


def seconds_per_update(unit: Any, optimizer: Any, config: RunConfig, first: int, turn: int, skipped: int) -> float:
    """Median seconds of one update over a turn."""
    size, times, training = config.image_size, list[float](), config.training()
    x = torch.randn(config.batch_size, config.num_channels, size, size)
    y = torch.randint(0, config.num_classes, (config.batch_size,))
    for update in range(first, first + turn):
        start = time.perf_counter()
        train_step(unit, optimizer, x, y, update=update, lr=1e-3, config=training)
        times.append(time.perf_counter() - start)
    return statistics.median(times[skipped:])


def measure(name: str, settings: dict[str, Any], rounds: int, turn: int, skipped: int) -> dict[str, Any]:
    """Rounds of turns of all units; medians and the ratio of every round."""
    config = resolve("vit-digits", flags=settings)
    units: dict[str, Any] = {f"block {unit.index}": unit.train() for unit in build_units(config)}
    units["end to end"] = PlainVit(ViTForImageClassification(backbone_config(config, config.num_layers))).train()
    optimizers = {key: make_optimizer(unit, config.training()) for key, unit in units.items()}
    seconds: dict[str, list[float]] = {key: [] for key in units}
    for number in range(rounds):
        for key, unit in units.items():
            seconds[key].append(seconds_per_update(unit, optimizers[key], config, number * turn, turn, skipped))
    blocks = [key for key in units if key != "end to end"]
    ratios = [sum(seconds[key][k] for key in blocks) / seconds["end to end"][k] for k in range(rounds)]
    result = {
        "case": name,
        "num_blocks": config.num_blocks,
        "batch_size": config.batch_size,
        "threads": torch.get_num_threads(),
        "seconds": {key: statistics.median(values) for key, values in seconds.items()},
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
