"""Train a 6-layer ViT on handwritten digits in 3 blocks, beside the same network end to end, and compare them.

    python examples/demo.py [--run runs/demo] [any setting of `dblocks train`, such as --updates 200]

Stop it with Ctrl-C; the same command goes on.
"""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from diffusionblocks.cli import main
from diffusionblocks.config import read_json
from diffusionblocks.training.run import load_config

LAYERS_ADD_UP = ("weights", "gradients", "optimizer")


def demo(root: Path, flags: list[str]) -> int:
    """Train and score both networks, then print the comparison."""
    for method in ("blocks", "end-to-end"):
        run = str(root / method)
        status = main(["train", "vit-digits", "--method", method, "--run", run, *flags]) or main(["eval", run])
        if status:
            return status
    show(root)
    return 0


def show(root: Path) -> None:
    """Accuracy and memory of both runs, and the ratios that the method is about."""
    blocks, whole = read_json(root / "blocks/eval-test.json"), read_json(root / "end-to-end/eval-test.json")
    num_blocks = load_config(root / "blocks").num_blocks
    block = read_json(root / "blocks/block-0/memory.json")
    network = read_json(root / "end-to-end/network/memory.json")

    table = Table(title=f"digits, {blocks['images']} test images; memory of one update, kB")
    for name in ("", "accuracy %", "states of all", "states of layers", "activations of layers", "peak"):
        table.add_column(name, justify="right" if name else "left")
    for name, result, memory in (("end to end", whole, network), (f"blocks (B={num_blocks})", blocks, block)):
        table.add_row(name, f"{100 * result['accuracy']:.2f}", *(f"{n / 1000:,.0f}" for n in _bytes(memory)))
    ratios = [f"{a / b:.3f}" for a, b in zip(_bytes(block), _bytes(network), strict=True)]
    table.add_row("a block / end to end", "", *ratios)
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)
    block0 = blocks["blocks"][0]["alone"]["accuracy"]
    print(f"States are weights, gradients and optimizer. 1/B = {1 / num_blocks:.3f}.")
    print(f"Block 0 alone: {100 * block0:.2f}%; gain of the chain over it: {100 * blocks['chain_gain']:+.2f} points.")
    print("One seed on a small test set: differences of a point or two mean nothing.")


def _bytes(memory: dict) -> tuple[int, int, int, int]:
    total, layers = memory["total"], memory["layers"]
    states = (sum(part[kind] for kind in LAYERS_ADD_UP) for part in (total, layers))
    return *states, layers["activations"], total["peak_total"]


if __name__ == "__main__":
    arguments = sys.argv[1:]
    folder = "runs/demo"
    if "--run" in arguments[:-1]:
        at = arguments.index("--run")
        folder = arguments[at + 1]
        del arguments[at : at + 2]
    sys.exit(demo(Path(folder), arguments))
