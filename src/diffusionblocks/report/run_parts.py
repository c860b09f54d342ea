"""What the reports of all kinds of runs share: names, loss curves, memory, and how to do it again."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from diffusionblocks.config import read_json
from diffusionblocks.memory import KINDS
from diffusionblocks.provenance import provenance
from diffusionblocks.report import figures
from diffusionblocks.report.text import byte_unit, memory_total
from diffusionblocks.training.progress import METRICS
from diffusionblocks.training.run import CONFIG_FILE, PROVENANCE_FILE, load_config


def settings_of(run_dir: Path) -> dict[str, Any]:
    """A run's settings as they are stored, whatever its family."""
    return read_json(run_dir / CONFIG_FILE)


def method_name(settings: Mapping[str, Any]) -> str:
    """The method with its number of blocks, and the preset where it is not ours."""
    name = f"{settings['num_blocks']} blocks" if settings["method"] == "blocks" else settings["method"]
    name += " after a trunk" if settings["method"] == "blocks" and settings["trunk"] else ""
    return f"{name}, paper preset" if settings["preset"] == "paper" else name


def facts(settings: Mapping[str, Any], result: Mapping[str, Any], split: str) -> str:
    """Data, seed, length of training and size in a line."""
    updates = sorted(set(result["updates"].values()))
    each = " each" if len(result["updates"]) > 1 else ""
    return (
        f"{_data(settings, result, split)}; one seed ({settings['seed']}); "
        f"{' to '.join(f'{u:,}' for u in (updates[0], updates[-1])[: len(updates)])} updates{each} "
        f"of {settings['batch_size']} samples; {settings['num_layers']} layers of width {settings['hidden_size']}"
    )


def _data(settings: Mapping[str, Any], result: Mapping[str, Any], split: str) -> str:
    """The data and how much of them the split has."""
    if "dataset" in settings:
        return f"{settings['dataset']}, {result['images']:,} {split} images"
    name = settings["data"] if settings["data"].startswith("hub:") else Path(settings["data"]).name
    return f"{name}, {result['tokens']:,} {split} tokens ({settings['tokenizer']})"


def plan_levels(plan: str) -> list[float]:
    """The noise levels of a plan as it describes itself: "80 (block 0), 1.2 (block 1), then 0"."""
    return [float(level) for level in re.findall(r"(\S+) \(block \d+\)", plan)]


def loss_figure(run_dir: Path, name: str, unit: str) -> Markup | None:
    """Training loss of every unit, where there is any."""
    curves = {}
    for label, path in _unit_files(run_dir, METRICS).items():
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        curves[label] = [row["update"] for row in rows], [row["loss"] for row in rows]
    curves = {label: curve for label, curve in curves.items() if curve[0]}
    return figures.losses(name, curves, unit) if curves else None


def memory_section(run_dir: Path, name: str) -> dict[str, Any] | None:
    """Measured memory of the unit that needs most, beside what is predicted for it."""
    measured = {unit: read_json(path)["total"] for unit, path in _unit_files(run_dir, "memory.json").items()}
    if not measured:
        return None
    unit = max(measured, key=lambda key: memory_total(measured[key]))
    found, predicted = measured[unit], predicted_bytes(run_dir)
    names = byte_unit(max(found[kind] for kind in KINDS))
    return {
        "unit": unit,
        "figure": figures.memory_pair(name, found, predicted, names),
        "peaks": [sizes["peak_total"] / names[1] for sizes in (found, predicted)],
        "bytes": names[0],
        "batch": settings_of(run_dir)["batch_size"],
    }


def predicted_bytes(run_dir: Path) -> dict[str, int]:
    """Predicted bytes by kind, and of their peak, of one update of the unit of a run that needs most."""
    from diffusionblocks.planner import predict

    return predict(load_config(run_dir)).total


def made(run_dir: Path) -> dict[str, Any]:
    """What trained the run, as far as its folder says, and what wrote the report."""
    found = {"This report was written by": provenance()}
    started = run_dir / PROVENANCE_FILE
    return {"The run was started by": read_json(started), **found} if started.exists() else found


def _unit_files(run_dir: Path, name: str) -> dict[str, Path]:
    """A file of every unit that has it, by the unit's name ("block 0", "network"), in order of their numbers."""
    paths = [path for path in run_dir.glob(f"*/{name}") if path.parent.name != "model"]
    paths.sort(key=lambda path: [int(part) if part.isdigit() else 0 for part in re.split(r"\D+", path.parent.name)])
    return {path.parent.name.replace("-", " "): path for path in paths}
