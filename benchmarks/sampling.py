"""What sampling costs with blocks: operations of a step, images a second, and memory with one block resident.

    python benchmarks/sampling.py --recipe dit-fashion --out benchmarks/results/dit-fashion/sampling.json

Blocks and the network end to end take turns in one run. Memory is the peak of everything that is alive while a batch is
sampled (weights from the moment they are read), against that of the largest block's own forward.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from diffusionblocks.block import plan_of
from diffusionblocks.evaluation.costs import sampling_speed
from diffusionblocks.evaluation.generation import flops
from diffusionblocks.evaluation.opening import open_blocks
from diffusionblocks.families.dit import generate
from diffusionblocks.memory import forward_memory, loading_memory
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.provenance import write_result
from diffusionblocks.recipes import resolve
from diffusionblocks.training.networks import blockwise_of, build_units


def model_of(config: Any) -> BlockwiseModel:
    return BlockwiseModel(build_units(config), blockwise_of(config)).eval()  # type: ignore[arg-type]


def watched(folder: Path, watch: Any) -> list[Any]:
    """Loaders that read one block at a time and show it to the tracker."""

    def shown(load: Any) -> Any:
        def give() -> Any:
            watch(block := load())
            return block

        return give

    return [shown(load) for load in open_blocks(folder, "dit", "one")[1]]


def memory(folder: Path, batch: int) -> dict[str, int]:
    """Peaks in bytes: each block's own forward, and sampling with all blocks resident or one."""
    config, everything = open_blocks(folder, "dit", "all")
    blocks, plan, x = [load() for load in everything], plan_of(config), torch.zeros(batch, dtype=torch.long)
    z, sigma = torch.zeros(batch, *blocks[0].target_shape), torch.ones(batch)
    with torch.no_grad():
        alone = [forward_memory(b, lambda b=b: b(x, z, sigma))["peak_total"] for b in blocks]
    whole = torch.nn.ModuleList(blocks)
    resident = forward_memory(whole, lambda: generate(everything, x, plan, batch_size=batch))["peak_total"]
    one = loading_memory(
        torch.nn.Linear(1, 1), lambda watch: generate(watched(folder, watch), x, plan, batch_size=batch)
    )
    # The images on their way are there whichever block runs.
    return {
        "largest_block": max(alone),
        "shared": z.nbytes,
        "all_resident": resident,
        "one_resident": one["peak_total"],
    }


def measure(recipe: str, settings: dict[str, Any], batch: int) -> dict[str, Any]:
    config = resolve(recipe, flags=settings)
    configs = {"blocks": config, "end-to-end": config.model_copy(update={"method": "end-to-end"})}
    models = {name: model_of(one) for name, one in configs.items()}
    request = {"sampler": config.sampler, "guidance": 1.0}
    steps = {name: flops(model, plan_of(model.config), request)["flops_per_step"] for name, model in models.items()}
    speed = sampling_speed(configs, images=batch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        models["blocks"].save_pretrained(path)
        peaks = memory(path, batch)
    ratios = {
        "flops_per_step_times_B": config.num_blocks * steps["blocks"] / steps["end-to-end"],
        "images_per_second_over_B": speed["blocks"]["median"] / speed["end-to-end"]["median"] / config.num_blocks,
        "one_resident_over_largest_block_and_shared": peaks["one_resident"]
        / (peaks["largest_block"] + peaks["shared"]),
    }
    for name, value in ratios.items():
        print(f"{name}: {value:.3f}")
    return {
        "config": config.model_dump(mode="json"),
        "batch": batch,
        "flops_per_step": steps,
        "images_per_second": speed,
        "peak_bytes": peaks,
        "ratios": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--recipe", default="dit-fashion")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = measure(options.recipe, dict(s.split("=", 1) for s in options.settings), options.batch)
    if options.out:
        write_result(options.out, result)


if __name__ == "__main__":
    main()
