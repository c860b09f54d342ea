"""What the report of a comparison says: who beats whom over seeds, at which budget, with which memory and time."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from diffusionblocks.compare import COMPARE_FILE
from diffusionblocks.comparison import SIDES
from diffusionblocks.errors import InputError
from diffusionblocks.memory import KINDS
from diffusionblocks.report import figures
from diffusionblocks.report.causal_page import BITS, blocks_beside_shallow
from diffusionblocks.report.columns import table_row
from diffusionblocks.report.comparison import Stored, load_comparison, measured_with
from diffusionblocks.report.groups import Groups, is_main, mean_bytes, name_of, runs, unit_of
from diffusionblocks.report.panel import Panel
from diffusionblocks.report.passages import bits_of_methods, passages_of_methods
from diffusionblocks.report.run_parts import predicted_bytes, settings_of
from diffusionblocks.report.sampled import denoising_of_methods, first_runs, grids
from diffusionblocks.report.statistics import Key, values
from diffusionblocks.report.verdicts import cards, depth, leads, savings
from diffusionblocks.training.run import CONFIG_FILE


def compare_page(folder: Path) -> dict[str, Any]:
    """Everything the template needs of a folder that `dblocks compare` made, apart from its runs.

    Raises:
        InputError: no rows, or rows without what the report shows, by name.
    """
    path = folder / COMPARE_FILE
    stored = load_comparison(path)
    content, metric, groups = stored.content, stored.metric, stored.groups
    first = first_runs(stored, folder)
    try:
        return {
            "title": f"{content['recipe']}: blocks and controls",
            "facts": f"{stored.split} split; {runs(content['rows'])} in each row of the table at most",
            "headline": [*leads(groups, metric), depth(groups, metric)],
            "savings": savings(groups),
            "cards": cards(groups, metric),
            "metric": metric,
            "measured_with": measured_with(content),
            "words": ("budget", metric.against),
            "dots": figures.dots("dots", *_points(stored)),
            "by_level": [*denoising_of_methods("denoising", first), *bits_of_methods("bits", first), *_blocks(stored)],
            "grids": grids(stored, first),
            "passages": passages_of_methods(first, metric),
            "memory": _memory(groups, folder),
            "columns": list(table_row(next(iter(groups)), groups, metric)),
            "rows": [table_row(key, groups, metric) for key in groups],
            "unscored": [name_of(key) for key, rows in groups.items() if not values(rows, metric.name)],
            "made": {name: content[name] for name in ("command", "commit", "hardware", "versions")},
        }
    except (KeyError, TypeError) as error:
        raise InputError("file", str(path), f"what `dblocks compare` writes ({error})") from None


def _points(stored: Stored) -> tuple[dict[str, list[float]], str]:
    metric = stored.metric
    scores = {key: values(rows, metric.name) for key, rows in stored.groups.items()}
    labels = {
        f"{name_of(key)}; {_budget(key)}": [metric.scale * v for v in found] for key, found in scores.items() if found
    }
    return labels, f"{metric.heading} (a point per run, n ≤ {max(map(len, scores.values()))})"


def _blocks(stored: Stored) -> list[Panel]:
    return blocks_beside_shallow("blocks", stored.groups) if stored.metric is BITS else []


def _budget(key: Key) -> str:
    return f"{key.updates:,} updates" + (" (samples)" if key.budget == "samples" else "")


def _memory(groups: Groups, folder: Path) -> Markup:
    """Measured memory of each method, and what is predicted where there is a run folder of it."""
    predicted, stacks = _predicted(folder), {}
    for key, rows in groups.items():
        # A budget changes how long, not how much, and so does a variant, but for blocks of another kind.
        name = name_of(key if is_main(key) else key._replace(variant=""))
        if name not in stacks:
            stacks[name] = mean_bytes(rows)
            if name in predicted:
                stacks[f"{name}, predicted"] = predicted[name]
    return figures.memory_stacks("memory", stacks, unit_of(groups))


def _predicted(folder: Path) -> dict[str, dict[str, float]]:
    """Predicted bytes by kind of every method that has a run folder, by its name."""
    found = {}
    for path in sorted((folder / "runs").glob(f"*/{CONFIG_FILE}")):
        settings = settings_of(path.parent)
        method = "blocks+trunk" if settings["trunk"] else settings["method"]
        name = name_of(Key(method, settings["preset"], settings["num_blocks"], "", 0, _side(settings)))
        if name not in found:
            total = predicted_bytes(path.parent)
            found[name] = {kind: total[kind] for kind in KINDS}
    return found


def _side(settings: dict[str, Any]) -> str:
    """The kind of blocks that a run has, if its family has blocks of several kinds and its preset does not say it."""
    if settings["method"] != "blocks" or settings["preset"] != "default":
        return ""
    sides = SIDES.get(settings["family"], {})
    return next((side for side, own in sides.items() if all(settings[k] == v for k, v in own.items())), "")
