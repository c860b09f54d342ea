"""Measured memory of one update of a block against the network end to end, layers and the rest apart.

    python benchmarks/layer_memory.py --out benchmarks/results/vit-digits/layer_memory.json

Any setting of `dblocks train` can be given as NAME=VALUE, such as num_blocks=2 or conditioning=adaln.
"""

import argparse
from pathlib import Path
from typing import Any

from diffusionblocks.evaluation.costs import step_memory
from diffusionblocks.provenance import write_result
from diffusionblocks.recipes import resolve

KINDS = ("weights", "gradients", "optimizer", "activations")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--recipe", default="vit-digits")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in options.settings)
    config = resolve(options.recipe, flags=settings)
    block = step_memory(config).to_dict()
    whole = step_memory(config.model_copy(update={"method": "end-to-end"})).to_dict()
    share = 1 / config.num_blocks
    ratios = {
        part: {kind: block[part][kind] / whole["layers"][kind] / share for kind in KINDS}
        for part in ("layers", "plain_layers")
    }
    ratios["total"] = {kind: block["total"][kind] / whole["total"][kind] / share for kind in (*KINDS, "peak_total")}
    for part, row in ratios.items():
        name = {"plain_layers": "layers without conditioning", "total": "everything"}.get(part, part)
        print(f"{name:28} x B / end to end: " + ", ".join(f"{kind} {ratio:.3f}" for kind, ratio in row.items()))
    if options.out:
        result = {"config": config.model_dump(), "block": block, "end-to-end": whole, "ratio_times_B": ratios}
        write_result(options.out, result)


if __name__ == "__main__":
    main()
