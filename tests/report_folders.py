"""Folders for the tests of the report: a run of a few updates, a comparison of made-up numbers, a known prediction."""

import json
import shutil
from pathlib import Path

from diffusionblocks.cli import main
from diffusionblocks.memory import MemoryReport

TINY = ["--hidden-size", "16", "--num-layers", "4", "--num-heads", "2", "--patch-size", "4", "--num-blocks", "2"]
PREDICTED = {"weights": 11, "gradients": 12, "optimizer": 13, "activations": 14, "other": 15, "peak_total": 16}
LAYERS = {"weights": 1, "gradients": 1, "optimizer": 1, "activations": 1}


def foresee(monkeypatch) -> None:
    """Predict known numbers, so that what the page shows can be told from what is measured."""
    monkeypatch.setattr("diffusionblocks.planner.predict", lambda config: MemoryReport(PREDICTED, LAYERS, LAYERS))


def train(folder: Path, *flags: str) -> Path:
    """Three updates of a tiny network on the digits."""
    assert main(["train", "vit-digits", "--run", str(folder), *TINY, "--updates", "3", *flags]) == 0
    return folder


def row(method: str, seed: int, accuracy: float, **changes) -> dict:
    """A row of a comparison."""
    kinds = dict.fromkeys(("weights", "gradients", "optimizer", "activations", "other"), 2_000_000)
    metrics = {"accuracy": accuracy, "cross_entropy": 1 - accuracy}
    if method.startswith("blocks"):
        metrics |= {"block0_accuracy": accuracy - 0.02, "chain_gain": 0.02, "average_accuracy": accuracy}
    return {
        "method": method,
        "preset": "default",
        "num_blocks": 2,
        "seed": seed,
        "budget": "layer-evaluations",
        "updates": 3,
        "metrics": metrics,
        "memory_bytes": kinds,
        "layer_memory_bytes": kinds,
        "step_seconds": 0.0125,
        "samples_per_second": 4321.0,
        **changes,
    }


ROWS = [
    *(row("blocks", seed, accuracy) for seed, accuracy in enumerate((0.91, 0.93, 0.98))),
    *(row("end-to-end", seed, accuracy) for seed, accuracy in enumerate((0.90, 0.95, 0.94))),
    *(row("shallow", seed, accuracy) for seed, accuracy in enumerate((0.80, 0.86, 0.83))),
    *(row("shallow", seed, accuracy, updates=6) for seed, accuracy in enumerate((0.92, 0.91, 0.95))),
    row("checkpointing", 0, 0.0, metrics={"largest_loss_difference": 0.0}),
]


def compare(folder: Path, rows: list[dict], *runs: Path) -> Path:
    """A folder as `dblocks compare` leaves it, with copies of these runs."""
    for run in runs:
        shutil.copytree(run, folder / "runs" / run.name)
    folder.mkdir(parents=True, exist_ok=True)
    made = {"commit": "abc123", "versions": {"torch": "2"}, "hardware": {"cores": 2}, "command": "dblocks compare x"}
    (folder / "compare.json").write_text(json.dumps({"recipe": "vit-digits", **made, "rows": rows}))
    return folder
