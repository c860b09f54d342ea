"""The table of a comparison, for the terminal and the page: a line per group, every number with its unit."""

import math

from diffusionblocks.memory import KINDS
from diffusionblocks.report.groups import BUDGETS, Groups, control, is_bound, mean_bytes, name_of, ratio, unit_of
from diffusionblocks.report.metrics import METRICS, Column, Metric
from diffusionblocks.report.statistics import Key, mean_sd, paired_difference, values
from diffusionblocks.report.text import brief_difference, number


def table_row(key: Key, groups: Groups, metric: Metric = METRICS["vit"]) -> dict[str, str]:
    """One line of the table: every number with its unit in the column's name, and n of its own."""
    rows, (unit, size) = groups[key], unit_of(groups)
    mean, sd = mean_sd(values(rows, metric.name))
    other = control(groups, "end-to-end", key)
    against = ""
    if other is not None and other != key and not math.isnan(mean):
        against = brief_difference(paired_difference(rows, groups[other], metric.name), metric)
    sizes = mean_bytes(rows)
    row = {
        "method": name_of(key),
        "budget": BUDGETS.get(key.budget, key.budget),
        "updates": f"{key.updates:,}",
        "n, runs": str(len(rows)),
        metric.heading: number(metric.scale * mean, metric.digits),
        metric.spread: number(metric.scale * sd, metric.digits),
        metric.against: against,
    }
    if is_bound(rows):
        row[metric.heading] += " (bound)"
    for column in shown_columns(groups, metric):
        row[column.heading] = number(column.scale * mean_sd(values(rows, column.source))[0], column.digits)
    for column in metric.ratios:
        found = ratio(groups, key, column.source)
        row[column.heading] = "" if found is None else number(column.scale * found, column.digits)
    for column in metric.costs:
        found = [own[column.source] for own in rows if column.source in own]
        row[column.heading] = number(column.scale * mean_sd(found)[0], column.digits) if found else ""
    row |= {f"{kind}, {unit}": f"{sizes[kind] / size:.3g}" for kind in KINDS}
    row[f"sum, {unit}"] = f"{sum(sizes.values()) / size:.3g}"
    row["step, ms"] = f"{1000 * mean_sd([r['step_seconds'] for r in rows])[0]:.1f}"
    row["samples/s"] = f"{mean_sd([r['samples_per_second'] for r in rows])[0]:,.0f}"
    return row


def shown_columns(groups: Groups, metric: Metric) -> list[Column]:
    """Further values of rows, without those that no row has."""
    measured = {name for rows in groups.values() for row in rows for name in row["metrics"]}
    return [column for column in metric.columns if column.source in measured]


def terminal_columns(row: dict[str, str], metric: Metric) -> list[str]:
    """Those columns of a line for which a terminal has room."""
    left_out = {column.heading for column in (*metric.columns, *metric.costs) if column.page_only}
    return [name for name in row if name not in left_out and not name.startswith("sum, ")]
