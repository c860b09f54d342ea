"""`dblocks compare`: blocks beside every control, over seeds, at both budgets, as the rows of one table.

DIR/runs/NAME/     an ordinary run folder for each run, with eval-SPLIT.json
DIR/features/      the classifier that FID is measured with, for generators
DIR/costs.json     memory and time of an update of each method, measured in one go
DIR/compare.json   the rows
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from diffusionblocks import checkpoint
from diffusionblocks.comparison import Comparison, Entry
from diffusionblocks.config import read_json
from diffusionblocks.evaluation.costs import losses, sampling_speed, step_memory, step_times
from diffusionblocks.evaluation.score import run_with, score_run
from diffusionblocks.memory import KINDS
from diffusionblocks.provenance import provenance
from diffusionblocks.run_config import AnyRun
from diffusionblocks.training.run import PROVENANCE_FILE, claim_folder, export_model, make_trainers

COMPARE_FILE = "compare.json"


def compare(comparison: Comparison, folder: Path, device: str = "cpu", progress: bool = True) -> dict[str, Any]:
    """Train and score whatever is missing, measure the costs, and write DIR/compare.json.

    Returns:
        What the file holds.

    Raises:
        InputError: settings or data that do not fit; a folder with runs of other settings.
        Interrupted: Ctrl-C; the same call goes on.
    """
    entries = comparison.entries()
    folder.mkdir(parents=True, exist_ok=True)
    scored = []
    for number, entry in enumerate(entries):
        run_dir = folder / "runs" / entry.run
        if not _is_scored(run_dir, entry, comparison):
            print(f"run {number + 1} of {len(entries)}: {entry.run} {entry.variant}", flush=True)
            for trainer in make_trainers(entry.trained, run_dir, device=device, progress=progress):
                trainer.train()
            checkpoint.write_text(run_dir / "budget.json", json.dumps(dataclasses.asdict(trainer.budget)))
            export_model(run_dir, entry.trained, trainer.num_updates)
            options = _options(comparison, entry, folder)
            score_run(run_dir, comparison.split, options, device=device, name=entry.score_name)
        scored.append((entry, run_dir))
    costs = measure_costs(comparison, folder / "costs.json", device)
    rows = [_row(entry, run_dir, comparison, costs[entry.cost]) for entry, run_dir in scored]
    if "checkpointing" in (comparison.methods or ()):
        rows.append(_checkpointing_row(comparison.config(method="checkpointing"), costs))
    made = provenance()
    result = {"recipe": comparison.recipe, **made, "split": comparison.split}
    if comparison.family == "dit":
        first = read_json(scored[0][1] / f"eval-{comparison.split}.json")
        how = {name: first[name] for name in ("sampler", "num_sampling_steps", "samples")}
        sampling = {**how, "seeds": comparison.sampling_seeds}
        result |= {"metric": "fid", "sampling": sampling, "features": first["features"]}
    result |= {"costs": costs, "rows": rows}
    checkpoint.write_text(folder / COMPARE_FILE, json.dumps(result, indent=1) + "\n")
    return result


def _is_scored(run_dir: Path, entry: Entry, comparison: Comparison) -> bool:
    """Whether a run is finished and scored in this way; its folder must be one of these settings."""
    path = run_dir / f"eval-{comparison.split}{entry.score_name}.json"
    if not (run_dir / "budget.json").exists() or not path.exists():
        return False
    result = read_json(path)
    asked = {"settings": run_with(entry.trained)}
    if comparison.family == "dit":
        asked |= {"samples": comparison.samples}
        if len(result["sampling"]) != comparison.sampling_seeds:
            return False
    claim_folder(run_dir, entry.trained)
    return all(result.get(name) == value for name, value in asked.items())


def _options(comparison: Comparison, entry: Entry, folder: Path) -> Any:
    """How a run is scored; None: as its settings say."""
    if comparison.family != "dit":
        return None
    # The family's package is an extra, so it is imported for its runs alone.
    from diffusionblocks.evaluation.generation import GenerationOptions

    return GenerationOptions(
        samples=comparison.samples,
        seeds=range(comparison.sampling_seeds),
        guidance=entry.guidance,
        features=str(folder / "features"),
    )


def measure_costs(comparison: Comparison, path: Path, device: str = "cpu") -> dict[str, Any]:
    """Memory by kind and seconds of an update of each method, from the file if it has those of the same settings."""
    configs = {entry.cost: entry.config for entry in reversed(comparison.entries())}
    if "checkpointing" in (comparison.methods or ()):
        configs["checkpointing"] = comparison.config(method="checkpointing")
    # Costs depend on neither budget nor seed; the first seed stands for all.
    settings = {name: config.model_dump(mode="json", exclude={"data_dir"}) for name, config in configs.items()}
    if path.exists() and (stored := read_json(path))["settings"] == settings:
        return stored["costs"]
    times = step_times(configs, device)
    costs = {
        name: {**step_memory(config, device).to_dict(), "step": times[name].to_dict()}
        for name, config in configs.items()
    }
    if comparison.family == "dit":
        for name, speed in sampling_speed(configs, device).items():
            costs[name]["sampling"] = speed
    if "checkpointing" in configs:
        costs["checkpointing"]["losses"] = losses(configs["checkpointing"], 5)
        costs["checkpointing"]["end-to-end losses"] = losses(comparison.config(method="end-to-end"), 5)
    checkpoint.write_text(path, json.dumps({"settings": settings, **provenance(), "costs": costs}, indent=1))
    return costs


def _row(entry: Entry, run_dir: Path, comparison: Comparison, costs: dict[str, Any]) -> dict[str, Any]:
    """One row; updates are those of each block, with its share of the trunk's; commit is that which began the run."""
    config, budget = entry.config, read_json(run_dir / "budget.json")
    result = read_json(run_dir / f"eval-{comparison.split}{entry.score_name}.json")
    updates = budget["last"] - budget["first"] + budget["first"] // config.num_blocks
    row = {
        "method": entry.method,
        "preset": config.preset,
        "variant": entry.variant,
        "num_blocks": config.num_blocks,
        "seed": config.seed,
        "fold": entry.fold,
        "budget": config.budget,
        "updates": updates,
        "metrics": _generation(result) if comparison.family == "dit" else _classification(result, entry),
        "commit": read_json(run_dir / PROVENANCE_FILE)["commit"],
        **_costs(costs, config.batch_size),
    }
    if comparison.family == "dit":
        row |= {name: result[name] for name in ("flops_per_step", "flops_per_image")}
        row["features"] = result["features"]["sha256"]
        row["images_per_second"] = costs["sampling"]["median"]
    return row


def _generation(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("fid", "fid_se", "kid", "precision", "recall", "denoising_error")}


def _classification(result: dict[str, Any], entry: Entry) -> dict[str, Any]:
    scores = result["members"][0] if entry.config.method != entry.trained.method else result
    metrics = {name: scores[name] for name in ("accuracy", "cross_entropy")}
    if "blocks" in result:
        metrics |= {
            "block0_accuracy": result["blocks"][0]["alone"]["accuracy"],
            "chain_accuracy": result["chain"]["accuracy"],
            "chain_gain": result["chain_gain"],
            "average_accuracy": result["average"]["accuracy"],
        }
    return metrics


def _costs(costs: dict[str, Any], batch_size: int) -> dict[str, Any]:
    step = costs["step"]
    return {
        "memory_bytes": {kind: costs["total"][kind] for kind in KINDS},
        "layer_memory_bytes": {kind: costs["layers"].get(kind, 0) for kind in KINDS},
        "peak_bytes": costs["total"]["peak_total"],
        "step_seconds": step["median"],
        "samples_per_second": batch_size * step["units"] / step["median"],
    }


def _checkpointing_row(config: AnyRun, costs: dict[str, Any]) -> dict[str, Any]:
    """Activation checkpointing changes memory and time alone: a row without an accuracy, with the check of its loss."""
    cost = costs["checkpointing"]
    differences = [abs(a - b) for a, b in zip(cost["losses"], cost["end-to-end losses"], strict=True)]
    row = {"method": "checkpointing", "preset": config.preset, "num_blocks": config.num_blocks, "seed": config.seed}
    row |= {"variant": "", "fold": 0, "budget": "layer-evaluations", "updates": len(differences)}
    return {**row, "metrics": {"largest_loss_difference": max(differences)}} | _costs(cost, config.batch_size)
