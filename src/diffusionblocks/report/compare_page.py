"""What the report of a comparison says: who beats whom over seeds, at which budget, with which memory and time."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from diffusionblocks.config import read_json
from diffusionblocks.errors import InputError
from diffusionblocks.memory import KINDS
from diffusionblocks.report import figures
from diffusionblocks.report.statistics import Key, Row, beats, group, mean_sd, paired_difference, values
from diffusionblocks.report.text import ONE_SEED, brief_difference, byte_unit, difference, number
from diffusionblocks.training.run import CONFIG_FILE, load_config

COMPARE_FILE = "compare.json"
METRIC = "accuracy"
AGAINST = "minus end to end, points"
WHOLE = ("end-to-end", "checkpointing")
OF_BLOCKS = ("blocks", "blocks+trunk")
BUDGETS = {"layer-evaluations": "equal layer evaluations", "samples": "equal samples"}

Groups = dict[Key, list[Row]]


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
        cards = _cards(groups)
        return {
            "title": f"{stored['recipe']}: blocks and controls",
            "facts": f"{stored.get('split', 'test')} split; {_runs(stored['rows'])} in each row of the table at most",
            "headline": [*(_lead(card) for card in cards[:1]), _depth(groups)],
            "cards": cards,
            "words": ("budget", AGAINST),
            "dots": figures.dots("dots", *_points(groups)),
            "memory": _memory(groups, folder),
            "columns": list(_table_row(next(iter(groups)), groups)),
            "rows": [_table_row(key, groups) for key in groups],
            "unscored": [name_of(key) for key, rows in groups.items() if not values(rows, METRIC)],
            "made": {name: stored[name] for name in ("command", "commit", "hardware", "versions")},
        }
    except (KeyError, TypeError) as error:
        raise InputError("file", str(folder / COMPARE_FILE), f"what `dblocks compare` writes ({error})") from None


def name_of(key: Key) -> str:
    """A group in words, without its budget."""
    name = key.method if key.method in WHOLE else f"{key.method}, B = {key.num_blocks}"
    return name + (", paper preset" if key.preset == "paper" else "")


def reference(groups: Groups, method: str, key: Key, longest: bool = False) -> Key | None:
    """The group of a control to hold a group against: at its budget if there is one, with the fewest or most updates.

    Shallow networks have `longest` where layer evaluations are equal to those of all blocks.
    """
    found = [other for other in groups if other.method == method]
    found = [other for other in found if other.num_blocks == key.num_blocks] or found
    found = [other for other in found if other.budget == key.budget] or found
    if not found:
        return None
    return (max if longest else min)(found, key=lambda other: other.updates)


def _cards(groups: Groups) -> list[dict[str, str]]:
    """Blocks against end to end and shallow at equal layer evaluations, one entry per group of blocks."""
    found = []
    for key, rows in groups.items():
        if key.method not in OF_BLOCKS or key.budget != "layer-evaluations":
            continue
        mean, sd = mean_sd(values(rows, METRIC))
        entry = {"name": name_of(key), "accuracy": _mean_sd(mean, sd, rows)}
        for method, words in (("end-to-end", "end to end"), ("shallow", "the shallow network")):
            other = reference(groups, method, key, longest=method == "shallow")
            if other is not None:
                entry[f"minus {words}"] = _difference(rows, groups[other])
        gain, spread = mean_sd(values(rows, "chain_gain"))
        entry["gain of the chain over block 0"] = _mean_sd(gain, spread, rows, "points", "+")
        if not gain > 0:
            entry["warning"] = "The chain gains nothing over block 0 alone."
        found.append(entry)
    return found


def _lead(card: dict[str, str]) -> str:
    """The first group of blocks in one sentence; a chain without gain comes first."""
    against = [f"from {name.removeprefix('minus ')} by {value}" for name, value in card.items() if "minus" in name]
    lead = f"At equal layer evaluations {card['name']}, differ {' and '.join(against)}." if against else ""
    return f"{card.get('warning', '')} {lead}".strip()


def _depth(groups: Groups) -> str:
    """Whether the data show a benefit of depth: end to end against shallow after the same number of samples."""
    for whole in groups:
        same = [k for k in groups if k.method == "shallow" and k.updates == whole.updates]
        if whole.method != "end-to-end" or not same:
            continue
        a, b = groups[whole], groups[same[0]]
        by = _difference(a, b)
        if beats(a, b, METRIC):
            return (
                f"Depth helps here: end to end beats the shallow network after equally many samples by {by}, "
                "more than 2 standard errors."
            )
        if paired_difference(a, b, METRIC).n < 2:
            return (
                f"End to end against shallow after equally many samples: {by}. One seed cannot show a benefit of depth."
            )
        return (
            "At this size the data do not show a benefit of depth: end to end against the shallow network after "
            f"equally many samples is {by}, not above 2 standard errors."
        )
    return "There is no end-to-end and shallow pair with equally many samples, so nothing is said about depth."


def _points(groups: Groups) -> tuple[dict[str, list[float]], str]:
    scores = {key: values(rows, METRIC) for key, rows in groups.items()}
    labels = {f"{name_of(key)}; {_budget(key)}": [100 * v for v in found] for key, found in scores.items() if found}
    return labels, f"accuracy, % (a point per run, n ≤ {max(map(len, scores.values()))})"


def _runs(rows: Sequence[Row]) -> str:
    """How many runs of the same settings there are, in seeds and folds."""
    seeds, folds = (len({row.get(name) for row in rows}) for name in ("seed", "fold"))
    by_seed = f"{seeds} seed{'s' if seeds > 1 else ''}"
    return by_seed if folds == 1 else f"{seeds * folds} runs ({by_seed}, {folds} folds)"


def _budget(key: Key) -> str:
    return f"{key.updates:,} updates" + (", equal samples" if key.budget == "samples" else "")


def _unit(groups: Groups) -> tuple[str, int]:
    return byte_unit(max(sum(_bytes(rows).values()) for rows in groups.values()))


def _bytes(rows: Sequence[Row]) -> dict[str, float]:
    """Mean bytes by kind; the same for every seed, but for what the allocator rounds."""
    return {kind: mean_sd([row["memory_bytes"][kind] for row in rows])[0] for kind in KINDS}


def _memory(groups: Groups, folder: Path) -> Markup:
    """Measured memory of each method, and what is predicted where there is a run folder of it."""
    predicted, stacks = _predicted(folder), {}
    for key, rows in groups.items():
        if name_of(key) not in stacks:  # a budget changes how long, not how much
            stacks[name_of(key)] = _bytes(rows)
            if name_of(key) in predicted:
                stacks[f"{name_of(key)}, predicted"] = predicted[name_of(key)]
    return figures.memory_stacks("memory", stacks, _unit(groups))


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


def _table_row(key: Key, groups: Groups) -> dict[str, str]:
    """One line of the table: every number with its unit in the column's name, and n of its own."""
    rows, (unit, size) = groups[key], _unit(groups)
    mean, sd = mean_sd(values(rows, METRIC))
    other = reference(groups, "end-to-end", key)
    against = ""
    if other is not None and other != key and not math.isnan(mean):
        against = brief_difference(paired_difference(rows, groups[other], METRIC), 100)
    sizes = _bytes(rows)
    row = {
        "method": name_of(key),
        "budget": BUDGETS.get(key.budget, key.budget),
        "updates": f"{key.updates:,}",
        "n, runs": str(len(rows)),
        "accuracy, %": number(100 * mean, 2),
        "sd, points": number(100 * sd, 2),
        AGAINST: against,
        "cross-entropy, nats": number(mean_sd(values(rows, "cross_entropy"))[0], 4),
    }
    of_blocks = {"block 0, %": "block0_accuracy", "chain gain, points": "chain_gain", "average, %": "average_accuracy"}
    for column, metric in of_blocks.items():
        row[column] = number(100 * mean_sd(values(rows, metric))[0], 2)
    row |= {f"{kind}, {unit}": f"{sizes[kind] / size:.3g}" for kind in KINDS}
    row[f"sum, {unit}"] = f"{sum(sizes.values()) / size:.3g}"
    row["step, ms"] = f"{1000 * mean_sd([r['step_seconds'] for r in rows])[0]:.1f}"
    row["samples/s"] = f"{mean_sd([r['samples_per_second'] for r in rows])[0]:,.0f}"
    return row


def _difference(rows: Sequence[Row], others: Sequence[Row]) -> str:
    return difference(paired_difference(rows, others, METRIC), 100, "points")


def _mean_sd(mean: float, sd: float, rows: Sequence[Row], unit: str = "%", sign: str = "") -> str:
    spread = ONE_SEED if len(rows) < 2 else f"sd {100 * sd:.2f} points, n = {_runs(rows)}"
    value = f"{100 * mean:{sign}.2f}".replace("-", "−")
    return f"{value}{'' if unit == '%' else ' '}{unit} ({spread})"
