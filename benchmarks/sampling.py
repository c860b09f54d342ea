"""What sampling costs with blocks: operations of a step, images a second, and memory with one block resident.

    python benchmarks/sampling.py --recipe dit-fashion --out benchmarks/results/dit-fashion/sampling.json

Blocks and the network end to end take turns in one run. Memory is the peak of everything that is alive while a batch is
sampled, against that of the largest block's own forward; process memory is that of a fresh process for each way.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from diffusionblocks.block import plan_of
from diffusionblocks.evaluation.costs import sampling_speed
from diffusionblocks.evaluation.generation import flops
from diffusionblocks.evaluation.sample import loaders_of
from diffusionblocks.families.dit import generate
from diffusionblocks.memory import forward_memory
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.provenance import write_result
from diffusionblocks.recipes import resolve
from diffusionblocks.training.networks import blockwise_of, build_units


def model_of(config: Any) -> BlockwiseModel:
    return BlockwiseModel(build_units(config), blockwise_of(config)).eval()  # type: ignore[arg-type]


def memory(folder: Path, batch: int) -> dict[str, int]:
    """Peaks in bytes: each block's own forward, and sampling with all blocks resident or one."""
    config, everything, _ = loaders_of(folder, "all")
    blocks, plan, x = [load() for load in everything], plan_of(config), torch.zeros(batch, dtype=torch.long)
    z, sigma = torch.zeros(batch, *blocks[0].target_shape), torch.ones(batch)
    alone = [forward_memory(b, lambda b=b: b(x, z, sigma))["peak_total"] for b in blocks]
    whole = torch.nn.ModuleList(blocks)
    resident = forward_memory(whole, lambda: generate(everything, x, plan, batch_size=batch))["peak_total"]
    # The tracker needs a module to watch; one without weights leaves what the loaders bring.
    nothing = torch.nn.Linear(1, 1)
    one = forward_memory(nothing, lambda: generate(loaders_of(folder, "one")[1], x, plan, batch_size=batch))
    return {"largest_block": max(alone), "all_resident": resident, "one_resident": one["peak_total"]}


def process_peak(folder: Path, way: str, batch: int) -> int:
    """Largest resident set in bytes of a fresh process that samples one batch, or ("none") imports alone."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", way, str(folder), str(batch)], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


def child(way: str, folder: Path, batch: int) -> None:
    if way != "none":
        config, loaders, _ = loaders_of(folder, way)
        generate(loaders, torch.zeros(batch, dtype=torch.long), plan_of(config), batch_size=batch)
    print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


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
        processes = {way: process_peak(path, way, batch) for way in ("none", "one", "all")}
    ratios = {
        "flops_per_step_times_B": config.num_blocks * steps["blocks"] / steps["end-to-end"],
        "images_per_second_over_B": speed["blocks"]["median"] / speed["end-to-end"]["median"] / config.num_blocks,
        "one_resident_over_largest_block": peaks["one_resident"] / peaks["largest_block"],
    }
    for name, value in ratios.items():
        print(f"{name}: {value:.3f}")
    print(
        "process, bytes above imports: "
        + ", ".join(f"{w} {processes[w] - processes['none']:,}" for w in ("one", "all"))
    )
    return {
        "config": config.model_dump(mode="json"),
        "batch": batch,
        "flops_per_step": steps,
        "images_per_second": speed,
        "peak_bytes": peaks,
        "process_bytes": processes,
        "ratios": ratios,
    }


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        return
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
