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
from diffusionblocks.comparison import Comparison, Entry, pace_of
from diffusionblocks.config import read_json
from diffusionblocks.evaluation.costs import (
    generation_speed,
    head_share,
    losses,
    mean_seconds,
    sampling_speed,
    step_memory,
    step_times,
)
from diffusionblocks.evaluation.score import run_with, score_run
from diffusionblocks.memory import KINDS
from diffusionblocks.provenance import provenance
from diffusionblocks.run_config import AnyRun
from diffusionblocks.scoring import SCORING
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
    comparison.entries()  # refuses settings that do not fit before there is a folder
    folder.mkdir(parents=True, exist_ok=True)
    if "wall-clock" in (comparison.budgets or ()):
        paces = measure_paces(comparison, folder / "paces.json", device)
        comparison = dataclasses.replace(comparison, paces=paces)
    entries, scoring = comparison.entries(), SCORING[comparison.family]
    scored = []
    for number, entry in enumerate(entries):
        run_dir = folder / "runs" / entry.run
        if not _is_scored(run_dir, entry, comparison):
            print(f"run {number + 1} of {len(entries)}: {entry.run} {entry.variant}", flush=True)
            for trainer in make_trainers(entry.trained, run_dir, device=device, progress=progress):
                trainer.train()
            checkpoint.write_text(run_dir / "budget.json", json.dumps(dataclasses.asdict(trainer.budget)))
            export_model(run_dir, entry.trained, trainer.num_updates)
            options = scoring.options(comparison, entry, folder)
            score_run(run_dir, comparison.split, options, device=device, name=entry.score_name)
        scored.append((entry, run_dir))
    costs = measure_costs(comparison, folder / "costs.json", device)
    rows = [_row(entry, run_dir, comparison, costs[entry.cost]) for entry, run_dir in scored]
    if "checkpointing" in (comparison.methods or ()):
        rows.append(_checkpointing_row(comparison.config(method="checkpointing"), costs))
    first = read_json(scored[0][1] / f"eval-{comparison.split}{scored[0][0].score_name}.json")
    result = {"recipe": comparison.recipe, **provenance(), "split": comparison.split}
    if comparison.paces:
        result["paces"] = dict(comparison.paces)
    result |= {"family": comparison.family, **scoring.header(first, comparison), "costs": costs, "rows": rows}
    checkpoint.write_text(folder / COMPARE_FILE, json.dumps(result, indent=1) + "\n")
    return result


def _is_scored(run_dir: Path, entry: Entry, comparison: Comparison) -> bool:
    """Whether a run is finished and scored in this way; its folder must be one of these settings."""
    path = run_dir / f"eval-{comparison.split}{entry.score_name}.json"
    if not (run_dir / "budget.json").exists() or not path.exists():
        return False
    result = read_json(path)
    claim_folder(run_dir, entry.trained)
    is_as_asked = SCORING[comparison.family].is_as_asked(result, comparison)
    return is_as_asked and result.get("settings") == run_with(entry.trained)


def measure_paces(comparison: Comparison, path: Path, device: str = "cpu") -> dict[str, float]:
    """How many updates each method makes in the time of one of end to end, from the file if there is one.

    The file keeps them, so that what was trained for equal time goes on with the same budgets.
    """
    if not path.exists():
        configs = {"end-to-end": comparison.config(method="end-to-end")}
        configs |= {pace_of(entry.config): entry.config for entry in comparison.entries()}
        seconds = mean_seconds(configs, device)
        paces = {name: seconds["end-to-end"] / each for name, each in seconds.items()}
        checkpoint.write_text(path, json.dumps({**provenance(), "seconds": seconds, "paces": paces}, indent=1))
    return read_json(path)["paces"]


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
    if comparison.family in ("causal-lm", "recurrent-lm"):
        for name, speed in generation_speed(configs, device).items():
            costs[name] |= {"generation": speed, "head_share": head_share(configs[name])}
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
    scoring = SCORING[comparison.family]
    row = {
        "method": entry.method,
        "preset": config.preset,
        "variant": entry.variant,
        "num_blocks": config.num_blocks,
        "seed": config.seed,
        "fold": entry.fold,
        "budget": config.budget,
        "updates": updates,
        "metrics": scoring.metrics(result, entry),
        "commit": read_json(run_dir / PROVENANCE_FILE)["commit"],
        **_costs(costs, config.batch_size),
    }
    return row | scoring.further(result, costs)


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
