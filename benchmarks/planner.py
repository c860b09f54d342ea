"""Predicted memory of an update against two real updates through the trainer, and how long a 12-layer plan takes.

    python benchmarks/planner.py --out benchmarks/results/planner/planner.json

The network is vit-digits' (6 layers) with a batch of 32; the plan that is timed is that of vit-cifar100.
"""

import argparse
import itertools
import os
import time
from pathlib import Path
from typing import Any

from provenance import write_result

from diffusionblocks.data.batches import ImageBatches
from diffusionblocks.memory import MemoryReport
from diffusionblocks.planner import plan, predict
from diffusionblocks.recipes import resolve
from diffusionblocks.run_config import AnyRun
from diffusionblocks.training.data import load_split
from diffusionblocks.training.networks import build_units
from diffusionblocks.training.trainer import Trainer

PRECISIONS = ({"precision": "fp32"}, {"precision": "bf16"})
CHECKPOINTING = ({"checkpointing": False}, {"checkpointing": True})
METHODS = (
    {"method": "end-to-end"},
    {"method": "shallow"},
    {"num_blocks": 1},
    {"num_blocks": 3, "conditioning": "scale-shift"},
    {"num_blocks": 3},
    {"num_blocks": 3, "preset": "paper"},
)


def measure(config: AnyRun) -> MemoryReport:
    """Two real updates of the largest unit of a method."""
    largest = max(build_units(config), key=lambda unit: len(unit.layers))  # type: ignore[arg-type]
    training = config.training().model_copy(update={"updates": 2, "epochs": None})
    trainer = Trainer([largest], ImageBatches(load_split(config, "train")), training, progress=False)
    (report,) = trainer.train().values()
    return report


def compare(settings: dict[str, Any]) -> dict[str, Any]:
    """One row: the settings, what was measured, and predicted minus measured in bytes."""
    config = resolve("vit-digits", flags={"batch_size": 32, **settings})
    measured, predicted = measure(config).to_dict(), predict(config).to_dict()
    off = {part: {kind: predicted[part][kind] - size for kind, size in row.items()} for part, row in measured.items()}
    exact = not any(size for row in off.values() for size in row.values())
    print("exact" if exact else f"off by {off}", settings)
    return {"settings": settings, "exact": exact, "measured": measured, "predicted_minus_measured": off}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    # Processor time as well: on a machine that other jobs use, it is the one that says what the plan costs.
    start, start_cpu = time.perf_counter(), time.process_time()
    rows_of_plan = plan(resolve("vit-cifar100"))
    timed = {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - start_cpu}
    print(f"plan of vit-cifar100, {len(rows_of_plan)} rows: {timed}")
    grid = itertools.product(METHODS, PRECISIONS, CHECKPOINTING)
    rows = [compare({**method, **precision, **kept}) for method, precision, kept in grid]
    if options.out:
        load = os.getloadavg()[0]
        plan_of = {"recipe": "vit-cifar100", "rows": len(rows_of_plan), "load_average": load, **timed}
        write_result(options.out, {"plan": plan_of, "exact": all(row["exact"] for row in rows), "rows": rows})


if __name__ == "__main__":
    main()
