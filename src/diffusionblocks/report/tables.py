"""Tables for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from diffusionblocks.memory import MemoryReport
from diffusionblocks.planner import PlanRow, precision_here
from diffusionblocks.report.causal_tables import causal_lines
from diffusionblocks.report.columns import table_row, terminal_columns
from diffusionblocks.report.groups import Groups
from diffusionblocks.report.language_tables import language_lines
from diffusionblocks.report.metrics import METRICS, Metric
from diffusionblocks.run_config import AnyRun


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


def plan_table(rows: Sequence[PlanRow]) -> Table:
    """Predicted memory of an update: a row for every method and number of blocks."""
    largest = max(row.report.total["peak_total"] for row in rows)
    unit, size = ("GB", 1e9) if largest >= 1e9 else ("MB", 1e6)
    table = Table(title=f"predicted memory of one update, {unit} (1 {unit} = {size:,.0f} bytes)")
    for name in ("method", "B", "layers", *_KINDS[:-1], "peak", "peak / end to end"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        sizes = (f"{row.report.total[kind] / size:.3f}" for kind in _KINDS)
        ratio = f"{row.ratio['peak_total']:.3f}"
        table.add_row(row.method, _number_of_blocks(row), str(row.num_layers), *sizes, ratio)
    return table


def plan_lines(rows: Sequence[PlanRow], config: AnyRun) -> list[str]:
    """What a plan's figures are, and what the layers alone need."""
    precision = precision_here(config)
    if config.precision == "auto":
        precision += " (what --precision auto gives on this machine)"
    lines = [
        f"batch {config.batch_size} in {config.micro_batches} part(s), {precision}; each kind is its own maximum over "
        "the update, the peak that of their sum.",
        "Counted as CPU kernels allocate. Not counted: the allocator's overhead, a CUDA context, data loading, and on "
        "the host the blocks whose turn it is not.",
    ]
    for row in rows:
        if row.method == "blocks" and row.num_blocks > 1:
            ratios = (f"{kind} {ratio * row.num_blocks:.3f}" for kind, ratio in row.layer_ratio.items())
            lines.append(f"layers alone x B / end to end, B = {row.num_blocks}: {', '.join(ratios)}")
    return lines


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


def score_lines(result: dict[str, Any]) -> list[Table | str]:
    """What `dblocks eval` shows of its result."""
    memory = forward_memory_line(result["memory_bytes"])
    if "bits_per_character" in result:
        return (causal_lines if "answers" in result else language_lines)(result, memory)
    what = f"{result['method']}, {result['split']} split, {result['images']} images"
    if "denoising" in result:
        how = f"{result['sampler']}, {result['num_sampling_steps']} steps, guidance {result['guidance']}"
        lines: list[Table | str] = [denoising_table(result), memory]
        if "fid" in result:
            spread = "" if result["fid_se"] is None else f" ± {result['fid_se']:.2f} (standard error)"
            of = f"{len(result['sampling'])} x {result['samples']:,} samples ({how})"
            lines.append(f"features: {result['features']['name']}, sha256 {result['features']['sha256'][:12]}")
            lines.append(
                f"{what}: FID {result['fid']:.2f}{spread}, KID {1000 * result['kid']:.2f} x 10^-3, precision "
                f"{result['precision']:.3f}, recall {result['recall']:.3f}, of {of}"
            )
        return lines
    lines = []
    if "blocks" in result:
        lines.append(block_table(result))
        lines.append(f"plan: {result['plan']}; start: {result['start']}; chains: {result['chains']}")
        lines.append(f"z-free average of the blocks: {100 * result['average']['accuracy']:.2f}%")
    return [*lines, memory, f"{what}: accuracy {100 * result['accuracy']:.2f}%"]


def denoising_table(result: dict[str, Any]) -> Table:
    """Weighted denoising error of each block over the levels of its interval."""
    table = Table(title="denoising error (weighted squared error, mean over levels of equal mass)")
    for name in ("block", "sigma", "error"):
        table.add_column(name, justify="right")
    for block in sorted({row["block"] for row in result["denoising"]}):
        rows = [row for row in result["denoising"] if row["block"] == block]
        levels = f"{rows[0]['sigma']:.4g} to {rows[-1]['sigma']:.4g}"
        table.add_row(str(block), levels, f"{sum(row['error'] for row in rows) / len(rows):.4f}")
    table.add_row("all", "", f"{result['denoising_error']:.4f}")
    return table


def compare_table(groups: Groups, metric: Metric = METRICS["vit"]) -> Table:
    """The rows of a comparison: score, spread, difference to end to end, memory by kind, time."""
    rows = [table_row(key, groups, metric) for key in groups]
    table = Table(title="means over n runs; memory is that of one update of the largest unit, each kind's own maximum")
    columns = terminal_columns(rows[0], metric)
    for column in columns:
        table.add_column(column.replace(", ", "\n"), justify="left" if column in ("method", "budget") else "right")
    for row in rows:
        budget = row["budget"].removeprefix("equal ")
        table.add_row(*(budget if column == "budget" else row[column] for column in columns))
    return table


def forward_memory_line(memory: dict[str, int]) -> str:
    """Measured memory of a forward in one line."""
    kinds = ", ".join(f"{name} {_bytes(memory[name])}" for name in ("weights", "activations", "other", "peak_total"))
    return f"measured memory of one forward, bytes: {kinds.replace('peak_total', 'peak')}"


_KINDS = ("weights", "gradients", "optimizer", "activations", "other", "peak_total")


def _number_of_blocks(row: PlanRow) -> str:
    return "" if row.method in ("end-to-end", "checkpointing") else str(row.num_blocks)


def _bytes(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _percent(scores: dict[str, float]) -> str:
    return f"{100 * scores['accuracy']:.2f}"
