"""What a comparison says in words, for the terminal and the page: who beats whom, and by how much."""

from collections.abc import Iterator, Sequence

from diffusionblocks.report.groups import (
    BUDGETS,
    OF_BLOCKS,
    Groups,
    common_updates,
    control,
    is_bound,
    is_main,
    mean_bytes,
    name_of,
    ratio,
    runs,
)
from diffusionblocks.report.metrics import METRICS, Metric
from diffusionblocks.report.statistics import Difference, Key, Row, beats, mean_sd, paired_difference, values
from diffusionblocks.report.text import difference, measured, named, points_with_spread, scored

STATES = ("weights", "gradients", "optimizer")
ACCURACY = METRICS["vit"]


def cards(groups: Groups, metric: Metric = ACCURACY) -> list[dict[str, str]]:
    """Every group of blocks at equal layer evaluations against each control, with the chain's gain over block 0."""
    found = []
    for key, rows in _at_equal_evaluations(groups):
        entry = {"name": name_of(key), metric.label: _measured(rows, metric)}
        n = common_updates(groups, key)
        for words, method, updates in (
            ("end to end", "end-to-end", None),
            ("the shallow network at N", "shallow", n),
            ("the shallow network at B N", "shallow", key.num_blocks * n),
            ("the ensemble of B shallow networks", "shallow-ensemble", None),
        ):
            other = control(groups, method, key, updates)
            if other is not None:
                entry[f"minus {words}"] = difference(paired_difference(rows, groups[other], metric.name), metric)
        if metric.has_chain:
            gains = values(rows, "chain_gain")
            entry["gain of the chain over block 0"] = points_with_spread(*mean_sd(gains), len(rows), runs(rows))
        found.append(entry)
    return found


def leads(groups: Groups, metric: Metric = ACCURACY) -> list[str]:
    """The first lines: each group of blocks beside end to end, with what shows whether later blocks are worth having.

    That is the chain's gain where there is one: it is warned of chains without gain, whatever their budget, in the very
    first lines. Where there is none the shallow network stands for it, in the last lines.
    """
    beside = []
    for key, rows in _at_equal_evaluations(groups):
        other = control(groups, "end-to-end", key)
        if other is None or not is_main(key):
            continue
        found = paired_difference(rows, groups[other], metric.name)
        sentence = f"{name_of(key)}: {scored(_measured(rows, metric), metric)}, {difference(found, metric)} "
        sentence += "beside end to end at equal layer evaluations"
        beside.append(f"{sentence}{_reading(found, key.method, 'end to end', metric, is_bound(rows))}.")
    return [*_without_gain(groups), *beside] if metric.has_chain else [*beside, *_beside_shallow(groups, metric)]


def _without_gain(groups: Groups) -> list[str]:
    return [
        f"{name_of(key)}, {BUDGETS.get(key.budget, key.budget)}: the chain gains nothing over block 0 alone."
        for key, rows in groups.items()
        if key.method in OF_BLOCKS and not mean_sd(values(rows, "chain_gain"))[0] > 0
    ]


def _beside_shallow(groups: Groups, metric: Metric) -> list[str]:
    """Blocks against the shallow network of as many updates as each has, blocks with a trunk against that of B N.

    And against the ensemble of shallow networks, of the same memory and compute, where there is one.
    """
    found = []
    for key, rows in _at_equal_evaluations(groups):
        times, updates = (1, "N") if key.method == "blocks" else (key.num_blocks, "B N")
        others = (
            ("the shallow network", f" at {updates} updates", "shallow", times * common_updates(groups, key)),
            ("the ensemble", " of B shallow networks", "shallow-ensemble", None),
        )
        for name, which, method, of_updates in others:
            other = control(groups, method, key, of_updates)
            if other is None or not is_main(key):
                continue
            d = paired_difference(rows, groups[other], metric.name)
            found.append(
                f"{name_of(key)}, minus {name}{which}: {named(difference(d, metric), metric)}"
                f"{_reading(d, key.method, name, metric, is_bound(rows))}."
            )
    return found


def _reading(d: Difference, own: str, other: str, metric: Metric, bounded: bool) -> str:
    """Which side a difference speaks for, where a plus sign does not say so itself; `bounded`: own is a bound alone."""
    if not metric.lower_is_better or d.n == 0:
        return ""
    if bounded and not d.high < 0:
        return "; lower is better, but a bound that is not lower does not say which is better"
    if d.low > 0:
        return f"; lower is better, so {other} {_are(other)} better"
    if d.high < 0:
        return f"; lower is better, so {own} {_are(own)} better"
    return f"; lower is better, and {'the interval holds 0, so' if d.n > 1 else 'from one seed'} neither is ahead"


def _are(name: str) -> str:
    return "are" if name in OF_BLOCKS else "is"


def depth(groups: Groups, metric: Metric = ACCURACY) -> str:
    """Whether the data show a benefit of depth: end to end against shallow after the same number of samples."""
    for whole in groups:
        same = [k for k in groups if k.method == "shallow" and (k.updates, k.variant) == (whole.updates, whole.variant)]
        if whole.method != "end-to-end" or not same:
            continue
        a, b = groups[whole], groups[same[0]]
        d = paired_difference(a, b, metric.name)
        by = named(difference(d, metric), metric)
        if beats(a, b, metric.name, metric.lower_is_better):
            return (
                f"Depth helps here: end to end beats the shallow network after equally many samples by {by}, "
                f"more than 2 standard errors{metric.direction}."
            )
        if d.n < 2:
            return (
                f"End to end against shallow after equally many samples: {by}{metric.direction}. One seed cannot show "
                "a benefit of depth."
            )
        return (
            "At this size the data do not show a benefit of depth: end to end against the shallow network after "
            f"equally many samples is {by}, not {'below −2' if metric.lower_is_better else 'above 2'} standard "
            f"errors{metric.direction}."
        )
    return "There is no end-to-end and shallow pair with equally many samples, so nothing is said about depth."


def savings(groups: Groups) -> list[str]:
    """Memory and time of each kind of blocks beside end to end, and of sampling where it is known."""
    found: dict[str, str] = {}
    for key, rows in groups.items():
        whole = control(groups, "end-to-end", key)
        if key.method not in OF_BLOCKS or whole is None or not is_main(key):
            continue
        a, b = mean_bytes(rows), mean_bytes(groups[whole])
        states = sum(a[kind] for kind in STATES) / sum(b[kind] for kind in STATES)
        seconds = ratio(groups, key, "step_seconds")
        sentence = (
            f"{name_of(key)}: a block's update has {states:.3f} of end to end's weights, gradients and optimizer state "
            f"and {a['activations'] / b['activations']:.3f} of its activations (1/B = {1 / key.num_blocks:.3f}); an "
            f"update of every block takes {seconds:.2f} of its time."
        )
        step, speed = (ratio(groups, key, name) for name in ("flops_per_step", "images_per_second"))
        if step is not None:
            sentence += f" A denoising step takes {step:.3f} of its FLOPs"
            sentence += "." if speed is None else f", and sampling makes {speed:.2f} times its images a second."
        tokens = ratio(groups, key, "tokens_per_second")
        if tokens is not None:
            sentence += f" Generating makes {tokens:.2f} times its tokens a second."
        found[name_of(key)] = sentence
    return list(found.values())


def _at_equal_evaluations(groups: Groups) -> Iterator[tuple[Key, list[Row]]]:
    """The groups of blocks that cost as much compute as end to end."""
    for key, rows in groups.items():
        if key.method in OF_BLOCKS and key.budget == "layer-evaluations":
            yield key, rows


def _measured(rows: Sequence[Row], metric: Metric) -> str:
    found = measured(*mean_sd(values(rows, metric.name)), len(rows), runs(rows), metric)
    return f"{found}, an upper bound" if is_bound(rows) else found
