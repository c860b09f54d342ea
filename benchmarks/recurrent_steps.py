"""What a training step of a recurrent network costs by its number of passes K: memory, layer evaluations, seconds.

    python benchmarks/recurrent_steps.py --out benchmarks/results/huginn-shakespeare/steps.json

The loop is trained through its last passes (truncated), or through all; the denoiser has K at inference alone. Seconds
are taken in alternation. Any setting of `dblocks train` can be given as NAME=VALUE.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from diffusionblocks.evaluation.costs import random_batches, unit_memory
from diffusionblocks.families.recurrent_networks import LoopDraw, LoopedLm
from diffusionblocks.provenance import write_result
from diffusionblocks.recipes import resolve
from diffusionblocks.training.networks import build_units
from diffusionblocks.training.step import make_optimizer, train_step

PASSES = (4, 16, 64)
METHODS = ("blocks", "end-to-end", "full-bptt")
ROUNDS, TURN = 5, 4


def unit_of(config: Any, passes: int) -> Any:
    """The unit that a method trains; a loop always takes so many passes."""
    (unit,) = build_units(config)
    if isinstance(unit, LoopedLm):
        drawn = unit.draw

        def draw(batch_size: int, generator: torch.Generator) -> LoopDraw:
            return LoopDraw(passes, drawn(batch_size, generator).start)

        unit.draw = draw
    return unit


def evaluations(config: Any, passes: int) -> int:
    """Evaluations of a layer in a step: one in the forward pass, two in the backward pass."""
    outside, core = config.prelude + config.coda, config.num_layers - config.prelude - config.coda
    forward = 1 if config.method == "blocks" else passes
    backward = min(forward, config.bptt_steps) if config.method == "end-to-end" else forward
    return outside * 3 + core * (forward + 2 * backward)


def seconds(units: dict[Any, Any], configs: dict[Any, Any]) -> dict[Any, float]:
    """Median seconds of a step of each, in alternation."""
    optimizers = {key: make_optimizer(unit.train(), configs[key].training()) for key, unit in units.items()}
    found: dict[Any, list[float]] = {key: [] for key in units}
    for number in range(ROUNDS + 1):
        for key, unit in units.items():
            config, batch = configs[key], random_batches(configs[key])
            for update in range(TURN):
                start = time.perf_counter()
                train_step(unit, optimizers[key], batch.x, batch.y, update=update, lr=1e-4, config=config.training())
                if number:
                    found[key].append(time.perf_counter() - start)
    return {key: statistics.median(times) for key, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--recipe", default="huginn-shakespeare")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in options.settings)
    configs = {
        (method, passes): resolve(options.recipe, flags={**settings, "method": method})
        for passes in PASSES
        for method in METHODS
    }
    times = seconds({key: unit_of(config, key[1]) for key, config in configs.items()}, configs)
    rows, table = [], Table("method", "K", "activations, MB", "peak, MB", "layer evaluations", "ms a step")
    for (method, passes), config in configs.items():
        total = unit_memory(unit_of(config, passes), config).total
        row = {"method": method, "passes": passes, "memory": total, "layer_evaluations": evaluations(config, passes)}
        rows.append({**row, "seconds": times[method, passes]})
        megabytes = [f"{total[kind] / 1e6:.1f}" for kind in ("activations", "peak_total")]
        table.add_row(
            method, str(passes), *megabytes, str(row["layer_evaluations"]), f"{1000 * times[method, passes]:.0f}"
        )
    Console(width=100).print(table)
    if options.out:
        write_result(options.out, {"config": configs["blocks", PASSES[0]].model_dump(mode="json"), "rows": rows})


if __name__ == "__main__":
    main()
