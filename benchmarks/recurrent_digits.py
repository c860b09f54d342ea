"""A recurrent vision transformer on digits: the denoiser beside the loop and the network without a loop, by depth.

    python benchmarks/recurrent_digits.py --out benchmarks/results/recurrent-digits/depth.json

The network is that of `docs/examples/recurrent_vit.py`: a ViT of 1 + 2 + 1 layers. The loop has 8 passes on average and
gradients through the last 4. Everything else is as in the recipe vit-digits and was not tuned for this. Every method is
trained for the same number of updates, and for as many as fit into the loop's time.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from diffusionblocks import BlockwiseModel, Trainer
from diffusionblocks.backbones import TRANSFORMERS
from diffusionblocks.conversion import with_measured_scale
from diffusionblocks.data.images import to_float
from diffusionblocks.evaluation.depth import DEPTHS
from diffusionblocks.families.vit import PlainVit, VitBlock
from diffusionblocks.provenance import write_result
from diffusionblocks.randomness import seeded
from diffusionblocks.recipes import resolve
from diffusionblocks.training.data import load_split, training_batches
from diffusionblocks.training.networks import backbone_config
from diffusionblocks.training.step import make_optimizer, train_step

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "examples"))
from recurrent_vit import LoopedVit, RecurrentVitBlock

METHODS = ("denoiser", "loop", "without a loop")
NUM_LAYERS, PASSES, WITH_GRADIENT = 4, 8, 4


def build(method: str, run: Any, seed: int) -> Any:
    """A method's network, initialised from a seed; the same backbone for each."""
    base = backbone_config(run, NUM_LAYERS)
    with seeded("cpu", seed, "recurrent digits"):
        backbone = TRANSFORMERS.build(VitBlock.backbone_classes[0], base)
        if method == "loop":
            return LoopedVit(backbone, PASSES, WITH_GRADIENT)
        if method == "without a loop":
            return PlainVit(backbone)
        config = with_measured_scale(run.blockwise(), base)
        return RecurrentVitBlock(backbone, config, 0, VitBlock.make_targets(config, base))


def paces(run: Any, batches: Any, rounds: int = 8, turn: int = 8) -> dict[str, float]:
    """Updates of each method in the time of one of the loop, from mean seconds taken in alternation."""
    units = {method: build(method, run, 0).train() for method in METHODS}
    optimizers = {method: make_optimizer(unit, run.training()) for method, unit in units.items()}
    seconds = dict.fromkeys(METHODS, 0.0)
    x, y = batches.batch([(0, row) for row in range(run.batch_size)], 0, 0)
    for number in range(rounds + 1):
        for method, unit in units.items():
            start = time.perf_counter()
            for update in range(number * turn, (number + 1) * turn):
                train_step(unit, optimizers[method], x, y, update=update, lr=1e-4, config=run.training())
            seconds[method] += (time.perf_counter() - start) if number else 0.0
    return {method: seconds["loop"] / spent for method, spent in seconds.items()}


@torch.no_grad()
def curve(unit: Any, images: Any) -> list[dict[str, float]]:
    """Accuracy and cross-entropy, in nats, by number of passes."""
    unit.eval()
    x, found = to_float(images.images), []
    for depth in DEPTHS:
        if isinstance(unit, VitBlock):
            model = BlockwiseModel([unit], unit.config)
            logs = model.decode(x, num_sampling_steps=depth, decoding="chain", start="zero")
        else:
            if isinstance(unit, LoopedVit):
                unit.num_recurrences = depth
            logs = unit(x).float().log_softmax(dim=-1)
        hits = (logs.argmax(dim=-1) == images.labels).double().mean()
        loss = functional.nll_loss(logs, images.labels)
        found.append({"passes": depth, "accuracy": float(hits), "cross_entropy": float(loss)})
        if isinstance(unit, PlainVit) and not isinstance(unit, LoopedVit):
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=250)
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    flags = {"num_layers": NUM_LAYERS, "num_blocks": 1, "updates": options.updates}
    run = resolve("vit-digits", flags=flags)
    batches, _ = training_batches(run, load_split(run, "train"))
    images = load_split(run, options.split)
    pace, rows = paces(run, batches), []
    for seed in range(options.seeds):
        for method in METHODS:
            for budget in ("samples",) if method == "loop" else ("samples", "wall-clock"):
                updates = round(options.updates * (pace[method] if budget == "wall-clock" else 1))
                unit = build(method, run, seed)
                config = run.training().model_copy(update={"updates": updates, "seed": seed})
                Trainer([unit], batches, config, progress=False, measure_memory=False).train()
                row = {"method": method, "budget": budget, "seed": seed, "updates": updates}
                rows.append({**row, "curve": curve(unit, images)})
    table = Table("method", "budget", "updates", *(f"K = {depth}" for depth in DEPTHS), title="accuracy, %")
    for method, budget in dict.fromkeys((row["method"], row["budget"]) for row in rows):
        same = [row for row in rows if (row["method"], row["budget"]) == (method, budget)]
        cells = [
            f"{100 * statistics.mean(point):.1f} ({100 * statistics.stdev(point):.1f})"
            if len(point) > 1
            else f"{100 * point[0]:.1f}"
            for point in zip(*([p["accuracy"] for p in row["curve"]] for row in same), strict=True)
        ]
        table.add_row(method, budget, str(same[0]["updates"]), *cells)
    Console(width=130).print(table)
    if options.out:
        result = {"recipe": "vit-digits", "settings": flags, "split": options.split, "pace": pace, "rows": rows}
        write_result(options.out, result)


if __name__ == "__main__":
    main()
