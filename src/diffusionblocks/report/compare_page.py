"""What the report of a comparison says: who beats whom over seeds, at which budget, with which memory and time."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from diffusionblocks.compare import COMPARE_FILE
from diffusionblocks.config import read_json
from diffusionblocks.errors import InputError
from diffusionblocks.memory import KINDS
from diffusionblocks.report import figures
from diffusionblocks.report.statistics import Key, group, values
from diffusionblocks.report.verdicts import (
    AGAINST,
    METRIC,
    Groups,
    cards,
    depth,
    leads,
    mean_bytes,
    name_of,
    runs,
    savings,
    table_row,
    unit_of,
)
from diffusionblocks.training.run import CONFIG_FILE, load_config


def compare_page(folder: Path) -> dict[str, Any]:
    """Everything the template needs of a folder that `dblocks compare` made, apart from its runs.

    Raises:
        InputError: no rows, or rows without what the report shows, by name.
    """
    stored = read_json(folder / COMPARE_FILE)
    try:
        groups = group(stored["rows"])
        if not groups:
            raise InputError("rows", [], "at least one run", f"see {folder / COMPARE_FILE}")
        found = cards(groups)
        return {
            "title": f"{stored['recipe']}: blocks and controls",
            "facts": f"{stored.get('split', 'test')} split; {runs(stored['rows'])} in each row of the table at most",
            "headline": [*leads(groups), depth(groups)],
            "savings": savings(groups),
            "cards": found,
            "words": ("budget", AGAINST),
            "dots": figures.dots("dots", *_points(groups)),
            "memory": _memory(groups, folder),
            "columns": list(table_row(next(iter(groups)), groups)),
            "rows": [table_row(key, groups) for key in groups],
            "unscored": [name_of(key) for key, rows in groups.items() if not values(rows, METRIC)],
            "made": {name: stored[name] for name in ("command", "commit", "hardware", "versions")},
        }
    except (KeyError, TypeError) as error:
        raise InputError("file", str(folder / COMPARE_FILE), f"what `dblocks compare` writes ({error})") from None


def _points(groups: Groups) -> tuple[dict[str, list[float]], str]:
    scores = {key: values(rows, METRIC) for key, rows in groups.items()}
    labels = {f"{name_of(key)}; {_budget(key)}": [100 * v for v in found] for key, found in scores.items() if found}
    return labels, f"accuracy, % (a point per run, n ≤ {max(map(len, scores.values()))})"


def _budget(key: Key) -> str:
    return f"{key.updates:,} updates" + (" (samples)" if key.budget == "samples" else "")


def _memory(groups: Groups, folder: Path) -> Markup:
    """Measured memory of each method, and what is predicted where there is a run folder of it."""
    predicted, stacks = _predicted(folder), {}
    for key, rows in groups.items():
        if name_of(key) not in stacks:  # a budget changes how long, not how much
            stacks[name_of(key)] = mean_bytes(rows)
            if name_of(key) in predicted:
                stacks[f"{name_of(key)}, predicted"] = predicted[name_of(key)]
    return figures.memory_stacks("memory", stacks, unit_of(groups))


def _predicted(folder: Path) -> dict[str, dict[str, float]]:
    """Predicted bytes by kind of every method that has a run folder, by its name."""
    from diffusionblocks.planner import predict

    found = {}
    for path in sorted((folder / "runs").glob(f"*/{CONFIG_FILE}")):
        config, settings = load_config(path.parent), read_json(path)
        method = "blocks+trunk" if settings.get("trunk") else config.method
        name = name_of(Key(method, config.preset, config.num_blocks, "", 0))
        if name not in found:
            total = predict(config).total
            found[name] = {kind: total[kind] for kind in KINDS}
    return found
