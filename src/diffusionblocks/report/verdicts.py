"""What a comparison says in words and in its table, for the terminal and the page: who beats whom, and by how much."""

import math
from collections.abc import Sequence

from diffusionblocks.memory import KINDS
from diffusionblocks.report.statistics import Key, Row, beats, mean_sd, paired_difference, values
from diffusionblocks.report.text import ONE_SEED, brief_difference, byte_unit, difference, number

METRIC = "accuracy"
AGAINST = "minus end to end, points"
WHOLE = ("end-to-end", "checkpointing")
OF_BLOCKS = ("blocks", "blocks+trunk")
STATES = ("weights", "gradients", "optimizer")
BUDGETS = {"layer-evaluations": "equal layer evaluations", "samples": "equal samples"}

Groups = dict[Key, list[Row]]


def name_of(key: Key) -> str:
    """A group in words, without its budget."""
    name = key.method if key.method in WHOLE else f"{key.method}, B = {key.num_blocks}"
    return name + (", paper preset" if key.preset == "paper" else "")


def control(groups: Groups, method: str, key: Key, updates: int | None = None) -> Key | None:
    """The group of a control to hold a group of blocks against.

    Args:
        groups: all groups.
        method: the control.
        key: the group of blocks; the control has its number of blocks and its budget, if there is such a one.
        updates: how many updates the control had, but for the rounding of epochs; None: any.
    """
    found = [other for other in groups if other.method == method]
    if updates is not None:
        found = [other for other in found if abs(other.updates - updates) <= key.num_blocks]
        found.sort(key=lambda other: abs(other.updates - updates))
    found = [other for other in found if other.num_blocks == key.num_blocks] or found
    found = [other for other in found if other.budget == key.budget] or found
    return found[0] if found else None


def cards(groups: Groups) -> list[dict[str, str]]:
    """Every group of blocks at equal layer evaluations against each control, with the chain's gain over block 0."""
    found = []
    for key, rows in groups.items():
        if key.method not in OF_BLOCKS or key.budget != "layer-evaluations":
            continue
        mean, sd = mean_sd(values(rows, METRIC))
        entry = {"name": name_of(key), "accuracy": _mean_sd(mean, sd, rows)}
        for words, method, times in (
            ("end to end", "end-to-end", None),
            ("the shallow network at N", "shallow", 1),
            ("the shallow network at B N", "shallow", key.num_blocks),
            ("the ensemble of B shallow networks", "shallow-ensemble", None),
        ):
            other = control(groups, method, key, None if times is None else times * _updates(groups, key))
            if other is not None:
                entry[f"minus {words}"] = _difference(rows, groups[other])
        gain, spread = mean_sd(values(rows, "chain_gain"))
        entry["gain of the chain over block 0"] = _mean_sd(gain, spread, rows, "points", "+")
        found.append(entry)
    return found


def _updates(groups: Groups, key: Key) -> int:
    """N: the updates of the network end to end, or else those of each block at equal layer evaluations."""
    whole = control(groups, "end-to-end", key)
    return key.updates if whole is None else whole.updates


def leads(groups: Groups) -> list[str]:
    """The first lines: chains without gain, whatever their budget, then each group of blocks beside end to end."""
    warnings = [
        f"{name_of(key)}, {BUDGETS.get(key.budget, key.budget)}: the chain gains nothing over block 0 alone."
        for key, rows in groups.items()
        if key.method in OF_BLOCKS and not mean_sd(values(rows, "chain_gain"))[0] > 0
    ]
    beside = [
        f"{card['name']}: {card['accuracy']}, {card['minus end to end']} beside end to end at equal layer evaluations."
        for card in cards(groups)
        if "minus end to end" in card
    ]
    return [*warnings, *beside]


def depth(groups: Groups) -> str:
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


def savings(groups: Groups) -> list[str]:
    """Memory and time of each kind of blocks beside end to end."""
    found: dict[str, str] = {}
    for key, rows in groups.items():
        whole = control(groups, "end-to-end", key)
        if key.method not in OF_BLOCKS or whole is None:
            continue
        a, b = mean_bytes(rows), mean_bytes(groups[whole])
        states = sum(a[kind] for kind in STATES) / sum(b[kind] for kind in STATES)
        seconds = [mean_sd([row["step_seconds"] for row in part])[0] for part in (rows, groups[whole])]
        found[name_of(key)] = (
            f"{name_of(key)}: a block's update has {states:.3f} of end to end's weights, gradients and optimizer state "
            f"and {a['activations'] / b['activations']:.3f} of its activations (1/B = {1 / key.num_blocks:.3f}); an "
            f"update of every block takes {seconds[0] / seconds[1]:.2f} of its time."
        )
    return list(found.values())


def runs(rows: Sequence[Row]) -> str:
    """How many runs of the same settings there are, in seeds and folds."""
    seeds, folds = (len({row.get(name) for row in rows}) for name in ("seed", "fold"))
    by_seed = f"{seeds} seed{'s' if seeds > 1 else ''}"
    return by_seed if folds == 1 else f"{seeds * folds} runs ({by_seed}, {folds} folds)"


def unit_of(groups: Groups) -> tuple[str, int]:
    return byte_unit(max(sum(mean_bytes(rows).values()) for rows in groups.values()))


def mean_bytes(rows: Sequence[Row]) -> dict[str, float]:
    """Mean bytes by kind; the same for every seed, but for what the allocator rounds."""
    return {kind: mean_sd([row["memory_bytes"][kind] for row in rows])[0] for kind in KINDS}


def table_row(key: Key, groups: Groups) -> dict[str, str]:
    """One line of the table: every number with its unit in the column's name, and n of its own."""
    rows, (unit, size) = groups[key], unit_of(groups)
    mean, sd = mean_sd(values(rows, METRIC))
    other = control(groups, "end-to-end", key)
    against = ""
    if other is not None and other != key and not math.isnan(mean):
        against = brief_difference(paired_difference(rows, groups[other], METRIC), 100)
    sizes = mean_bytes(rows)
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
    spread = ONE_SEED if len(rows) < 2 else f"sd {100 * sd:.2f} points, n = {runs(rows)}"
    value = f"{100 * mean:{sign}.2f}".replace("-", "−")
    return f"{value}{'' if unit == '%' else ' '}{unit} ({spread})"
