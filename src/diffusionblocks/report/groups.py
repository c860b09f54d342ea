"""Groups of rows in words: their names, their controls, their number of runs, their memory."""

from collections.abc import Sequence

from diffusionblocks.comparison import SIDES
from diffusionblocks.memory import KINDS
from diffusionblocks.report.statistics import Key, Row, mean_sd
from diffusionblocks.report.text import byte_unit

WHOLE = ("end-to-end", "checkpointing")
OF_BLOCKS = ("blocks", "blocks+trunk")
OF_SAMPLING = "guidance"
"""In the variants that are another way to sample; they are held against what is sampled in the same way only."""
BUDGETS = {
    "layer-evaluations": "equal layer evaluations",
    "wall-clock": "equal time",
    "samples": "equal samples",
}

Groups = dict[Key, list[Row]]


def name_of(key: Key) -> str:
    """A group in words, without its budget."""
    name = key.method if key.method in WHOLE else f"{key.method}, B = {key.num_blocks}"
    name += ", paper preset" if key.preset == "paper" else ""
    return f"{name}, {key.variant}" if key.variant else name


def is_main(key: Key) -> bool:
    """Whether a group is one of the table's main rows: without a variant, or blocks of the family's other kind."""
    return not key.variant or any(key.variant in sides for sides in SIDES.values())


def is_bound(rows: Sequence[Row]) -> bool:
    """Whether the answer of these runs has a bound where that of others is exact."""
    return any(row["metrics"].get("estimate") == "bound" for row in rows)


def control(groups: Groups, method: str, key: Key, updates: int | None = None) -> Key | None:
    """The group of a control to hold a group of blocks against.

    Args:
        groups: all groups.
        method: the control.
        key: the group of blocks. The control has its variant, or none where the variant is one of blocks alone; and
            its number of blocks and its budget, if there is such a one.
        updates: how many updates the control had, but for the rounding of epochs; None: any.
    """
    found = [other for other in groups if other.method == method]
    if updates is not None:
        found = [other for other in found if abs(other.updates - updates) <= key.num_blocks]
        found.sort(key=lambda other: abs(other.updates - updates))
    plain = [] if OF_SAMPLING in key.variant else [other for other in found if not other.variant]
    found = [other for other in found if other.variant == key.variant] or plain
    found = [other for other in found if other.num_blocks == key.num_blocks] or found
    found = [other for other in found if other.budget == key.budget] or found
    return found[0] if found else None


def common_updates(groups: Groups, key: Key) -> int:
    """N: the updates of the network end to end, or else those of each block at equal layer evaluations."""
    whole = control(groups, "end-to-end", key)
    return key.updates if whole is None else whole.updates


def ratio(groups: Groups, key: Key, name: str) -> float | None:
    """A value of a group's rows over that of end to end's, where both have it."""
    whole = control(groups, "end-to-end", key)
    sides = [[row[name] for row in groups[side] if name in row] for side in (key, whole) if side is not None]
    if len(sides) < 2 or not all(sides):
        return None
    return mean_sd(sides[0])[0] / mean_sd(sides[1])[0]


def runs(rows: Sequence[Row]) -> str:
    """How many runs of the same settings there are, in seeds and folds."""
    seeds, folds = (len({row.get(name) for row in rows}) for name in ("seed", "fold"))
    by_seed = f"{seeds} seed{'s' if seeds > 1 else ''}"
    return by_seed if folds == 1 else f"{seeds * folds} runs ({by_seed}, {folds} folds)"


def unit_of(groups: Groups) -> tuple[str, int]:
    """The unit for the memory of all groups: (name, bytes)."""
    return byte_unit(max(sum(mean_bytes(rows).values()) for rows in groups.values()))


def mean_bytes(rows: Sequence[Row]) -> dict[str, float]:
    """Mean bytes by kind; the same for every seed, but for what the allocator rounds."""
    return {kind: mean_sd([row["memory_bytes"][kind] for row in rows])[0] for kind in KINDS}
