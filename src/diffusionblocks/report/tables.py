"""Tables for the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

from diffusionblocks.memory import MemoryReport
from diffusionblocks.report.verdicts import Groups, table_row


def show(table: Table) -> None:
    """Print a table, as wide as it needs where the output is not a terminal."""
    console = Console()
    if not console.is_terminal:
        needed = console.measure(table, options=console.options.update(max_width=1000)).maximum
        console = Console(width=max(120, needed))
    console.print(table)


def memory_table(memory: dict[int, MemoryReport]) -> Table:
    """Measured memory of a training step: everything, and the layers with and without their conditioning."""
    table = Table(title="measured memory of one update, bytes")
    for name in ("block", "part", "weights", "gradients", "optimizer", "activations", "other", "peak_total"):
        table.add_column(name.replace("_", " "), justify="left" if name == "part" else "right")
    for index, report in sorted(memory.items()):
        rows = {
            "everything": report.total,
            "layers": report.layers,
            "layers without conditioning": report.plain_layers,
        }
        for part, kinds in rows.items():
            table.add_row(str(index), part, *(_bytes(kinds.get(name)) for name in _KINDS))
    return table


def block_table(result: dict[str, Any]) -> Table:
    """Accuracy of every block in the chain, on true noise, on scrambled images, and alone."""
    table = Table(title="accuracy in percent, by block")
    for name in ("block", "sigma", "chain after it", "oracle", "gap", "scrambled images", "alone (z = 0)"):
        table.add_column(name, justify="right")
    for row in result["blocks"]:
        table.add_row(
            str(row["block"]),
            f"{row['sigma']:.4g}",
            _percent(row["chain_after"]),
            _percent(row["oracle"]),
            f"{100 * row['oracle_gap']:+.2f}",
            _percent(row["scrambled"]),
            _percent(row["alone"]),
        )
    return table


def forward_memory_line(memory: dict[str, int]) -> str:
    """Measured memory of a forward in one line."""
    kinds = ", ".join(f"{name} {_bytes(memory[name])}" for name in ("weights", "activations", "other", "peak_total"))
    return f"measured memory of one forward, bytes: {kinds.replace('peak_total', 'peak')}"


_KINDS = ("weights", "gradients", "optimizer", "activations", "other", "peak_total")


def _bytes(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _percent(scores: dict[str, float]) -> str:
    return f"{100 * scores['accuracy']:.2f}"


def compare_table(groups: Groups) -> Table:
    """The rows of a comparison: score, spread, difference to end to end, memory by kind, time."""
    rows = [table_row(key, groups) for key in groups]
    table = Table(title="a line is the mean over its runs; memory is that of one update of the largest unit")
    for column in rows[0]:
        table.add_column(column, justify="left" if column in ("method", "budget") else "right")
    for row in rows:
        table.add_row(*row.values())
    return table
