"""The report's figures: what each shows, and the sentence that says so to those who do not see it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from diffusionblocks.block import edges_of
from diffusionblocks.config import BlockwiseConfig
from diffusionblocks.memory import KINDS
from diffusionblocks.noise import Masking, NoiseLaw
from diffusionblocks.partition import noise_intervals, training_interval
from diffusionblocks.report.drawing import DASHES, INK, MUTED, PAPER, SERIES, drawing


@dataclass(frozen=True)
class LevelAxis:
    """How noise levels are laid out: Gaussian ones by their logarithm, masking as it is, since its range has a 0.

    Attributes:
        place: where on the axis a level is.
        level: the level there.
        ticks: levels to write.
        label, density: of the axes.
        law, symbol: what the description says of them.
    """

    place: Callable[[float], float]
    level: Callable[[np.ndarray], np.ndarray]
    ticks: Sequence[float]
    label: str
    density: str
    law: str
    symbol: str

    @classmethod
    def of(cls, law: NoiseLaw, level_name: str) -> "LevelAxis":
        """That of a noise law; the name is that of a Gaussian level."""
        if isinstance(law, Masking):
            share = "t" if law.schedule == "linear" else "sin(πt/2)"
            label, over = f"level t; share of masked tokens: {share}", "masking law over the level t"
            return cls(float, np.asarray, (0, 0.25, 0.5, 0.75, 1), label, "density of t", over, "t")
        label, over = f"noise level {level_name}, log scale", "noise law over log sigma"
        ticks = _powers(law.cleanest, law.noisiest)
        return cls(math.log, np.exp, ticks, label, "density of ln σ", over, "sigma")


def noise_law(
    name: str, config: BlockwiseConfig, levels: Sequence[float], level_name: str = "σ / target norm"
) -> Markup:
    """Density of the noise law over its level, the blocks' intervals with their overlap, and the levels of the plan."""
    law = config.law()
    axis = LevelAxis.of(law, level_name)
    grid = np.linspace(axis.place(law.cleanest), axis.place(law.noisiest), 601)
    mass = law.cdf(torch.from_numpy(axis.level(grid))).numpy()
    middle, density = (grid[1:] + grid[:-1]) / 2, np.diff(mass) / np.diff(grid)
    height, rows = float(density.max()), config.num_blocks
    row_height = 0.11 * height  # so that each row of the intervals has about 16 px, whatever their number
    with drawing(name, 200 + 16 * rows) as d:
        axes = d.axes
        for k, core in enumerate(noise_intervals(edges_of(config))):
            colour = SERIES[k % len(SERIES)]
            inside = np.linspace(axis.place(core.lo), axis.place(core.hi), 200)
            axes.fill_between(inside, np.interp(inside, middle, density), color=colour, alpha=0.35, linewidth=0)
            wide, y = training_interval(law, core, config.gamma), -(k + 1) * row_height
            for part, width in ((wide, 2), (core, 7)):
                ends = [axis.place(part.lo), axis.place(part.hi)]
                axes.plot(ends, [y, y], color=colour, linewidth=width, solid_capstyle="butt")
        axes.plot(middle, density, color=INK, linewidth=1.5)
        steps = [axis.place(level) for level in levels]
        axes.plot(steps, [0] * len(steps), "v", color=INK, markersize=8, markeredgecolor=PAPER, clip_on=False, zorder=5)
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.set_xticks([axis.place(tick) for tick in axis.ticks], [f"{tick:g}" for tick in axis.ticks])
        above = [tick for tick in axes.get_yticks() if 0 <= tick <= 1.1 * height]
        below = {-(k + 1) * row_height: f"block {k}" if rows > 1 else "network" for k in range(rows)}
        axes.set_yticks([*above, *below], [*(f"{tick:g}" for tick in above), *below.values()])
        axes.set_ylim(-(rows + 0.8) * row_height, 1.08 * height)
        axes.set(xlabel=axis.label, ylabel=axis.density)
        edges = ", ".join(f"{edge:.3g}" for edge in edges_of(config))
        cut = f"cut into {rows} blocks at" if rows > 1 else "for one network from"
        return d.svg(f"Density of the {axis.law}, {cut} {axis.symbol} {edges}")


def losses(name: str, curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], unit: str) -> Markup:
    """Training loss over updates, a line per block."""
    with drawing(name, 250) as d:
        for k, (label, (updates, loss)) in enumerate(curves.items()):
            dash = DASHES[k % len(DASHES)]
            marker = "o" if len(updates) < 4 else ""
            d.axes.plot(updates, loss, color=SERIES[k % len(SERIES)], linestyle=dash, marker=marker, label=label)
        d.axes.set(xlabel="updates of each block" if len(curves) > 1 else "updates", ylabel=f"training loss, {unit}")
        d.axes.set_ylim(0, 1.05 * max(max(loss) for _, loss in curves.values()))
        if len(curves) > 1:
            d.axes.legend(ncols=2 if len(curves) > 3 else 1)
        ends = "; ".join(f"{label} ends at {loss[-1]:.3g}" for label, (_, loss) in curves.items())
        return d.svg(f"Training loss in {unit} over updates: {ends}")


@dataclass(frozen=True)
class Curve:
    """What is drawn over the noise level: the axes' labels, and the same in the words of the description."""

    label: str
    level: str
    name: str
    symbol: str
    is_log: bool


DENOISING = Curve("weighted denoising error", "noise level σ, log scale", "Weighted denoising error", "sigma", True)
MASKED_BITS = Curve("bits per masked token", "share of masked tokens", "Bits per masked token", "masked share", False)
BESIDE_WHOLE = Curve(
    "bits minus end to end's",
    "share of masked tokens",
    "Bits per masked token minus end to end's",
    "masked share",
    False,
)


def by_level(
    name: str, curves: Mapping[str, Sequence[tuple[float, float]]], edges: Sequence[float] = (), of: Curve = DENOISING
) -> Markup:
    """A line per label over the noise level, with the inner edges of the blocks."""
    levels = [level for curve in curves.values() for level, _ in curve]
    with drawing(name, 240 + 19 * (len(curves) if len(curves) > 1 else 0)) as d:
        axes = d.axes
        for edge in edges[1:-1]:
            axes.axvline(edge, color=MUTED, linewidth=1, linestyle=DASHES[2], zorder=1)
        for k, (label, curve) in enumerate(curves.items()):
            colour, dash = SERIES[k % len(SERIES)], DASHES[k % len(DASHES)]
            axes.plot(*zip(*curve, strict=True), color=colour, linestyle=dash, marker="o", markersize=4, label=label)
        if of.is_log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(FixedLocator(_powers(min(levels), max(levels))))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.set_xlim(-0.02, 1.02)
        values = [value for curve in curves.values() for _, value in curve]
        if min(values) < 0:
            axes.axhline(0, color=MUTED, linewidth=1)
        else:
            axes.set_ylim(0, 1.05 * max(values))
        axes.set(xlabel=of.level, ylabel=of.label)
        if len(curves) > 1:
            d.figure.legend(loc="outside upper left", ncols=1)
        ends = "; ".join(
            f"{label} {curve[0][1]:.3g} at {of.symbol} {curve[0][0]:.3g}, {curve[-1][1]:.3g} at {curve[-1][0]:.3g}"
            for label, curve in curves.items()
        )
        inner = ", ".join(f"{edge:.3g}" for edge in edges[1:-1])
        return d.svg(f"{of.name} over {of.symbol}: {ends}{f'; edges of blocks at {inner}' if inner else ''}")


def chain(name: str, after: Sequence[float], alone: Sequence[float], average: float, n: int) -> Markup:
    """Accuracy in percent after each block of the chain, of each block alone at z = 0, and of their average."""
    with drawing(name, 250) as d:
        axes, index = d.axes, range(len(after))
        axes.axhline(average, color=SERIES[2], linestyle=DASHES[1], label="average, no chain")
        axes.plot(
            index,
            alone,
            "s",
            color=SERIES[1],
            markerfacecolor=PAPER,
            markeredgewidth=2,
            markersize=8,
            label="alone, z = 0",
        )
        axes.plot(index, after, "o-", color=SERIES[0], markersize=7, label="chain up to it")
        _blocks(axes.xaxis, len(after))
        axes.set_xlim(-0.5, len(after) - 0.5)
        axes.margins(y=0.15)
        axes.set(xlabel="block", ylabel=f"accuracy, % (n = {n:,})")
        d.figure.legend(loc="outside upper left", ncols=2)
        values = "; ".join(
            f"after block {k} {a:.1f}, alone {b:.1f}" for k, (a, b) in enumerate(zip(after, alone, strict=True))
        )
        return d.svg(f"Accuracy in percent of {n} images: {values}; average {average:.1f}")


def oracle(name: str, after: Sequence[float], oracle: Sequence[float], scrambled: Sequence[float], n: int) -> Markup:
    """Accuracy in percent per block: in the chain, given the true noisy target, and that with another image."""
    with drawing(name, 160 + 30 * len(after)) as d:
        axes = d.axes
        for k, row in enumerate(zip(scrambled, after, oracle, strict=True)):
            axes.plot([min(row), max(row)], [k, k], color=MUTED, linewidth=1.5, zorder=1)
        rows = range(len(after))
        axes.plot(
            oracle, rows, "D", color=SERIES[3], markerfacecolor=PAPER, markeredgewidth=2, markersize=11, label="oracle"
        )
        axes.plot(
            scrambled, rows, "X", color=SERIES[1], markersize=9, markeredgewidth=0, label="oracle, scrambled image"
        )
        axes.plot(after, rows, "o", color=SERIES[0], markersize=5, label="in the chain")
        _blocks(axes.yaxis, len(after))
        axes.set_ylim(len(after) - 0.5, -0.5)
        axes.set_xlim(-4, 104)
        axes.set(xlabel=f"accuracy, % (n = {n:,})", ylabel="block")
        d.figure.legend(loc="outside upper left", ncols=2)
        values = "; ".join(
            f"block {k}: oracle {b:.1f}, chain {a:.1f}, scrambled {c:.1f}"
            for k, (a, b, c) in enumerate(zip(after, oracle, scrambled, strict=True))
        )
        return d.svg(f"Accuracy in percent of {n} images: {values}")


def memory_pair(name: str, measured: Mapping[str, int], predicted: Mapping[str, int], unit: tuple[str, int]) -> Markup:
    """Memory by kind, measured and predicted side by side; `unit` is (name, bytes)."""
    kinds, (unit_name, size) = list(KINDS), unit
    with drawing(name, 270) as d:
        axes, rows = d.axes, np.arange(len(kinds))
        for lift, label, sizes in ((-0.2, "measured", measured), (0.2, "predicted", predicted)):
            amounts = [sizes[kind] / size for kind in kinds]
            bars = axes.barh(rows + lift, amounts, height=0.36, color=SERIES[0], label=label)
            axes.bar_label(bars, [f"{amount:.3g}" for amount in amounts], padding=4)
            for bar in bars if label == "predicted" else ():
                bar.set(facecolor="none", edgecolor=SERIES[1], hatch="////")
        axes.set_yticks(rows, kinds)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.2)
        axes.set(xlabel=f"{unit_name}, largest in one update")
        d.figure.legend(loc="outside upper left", ncols=2)
        values = "; ".join(f"{kind} {measured[kind] / size:.3g} and {predicted[kind] / size:.3g}" for kind in kinds)
        return d.svg(f"Memory in {unit_name}, measured and predicted: {values}")


def memory_stacks(name: str, stacks: Mapping[str, Mapping[str, float]], unit: tuple[str, int]) -> Markup:
    """Memory by kind, one stacked bar per label; `unit` is (name, bytes)."""
    unit_name, size = unit
    with drawing(name, 120 + 38 * len(stacks)) as d:
        axes, rows, left = d.axes, np.arange(len(stacks)), np.zeros(len(stacks))
        for k, kind in enumerate(KINDS):
            amounts = np.array([sizes[kind] / size for sizes in stacks.values()])
            bars = axes.barh(rows, amounts, left=left, height=0.4, color=SERIES[k], edgecolor=PAPER, label=kind)
            for bar, label in zip(bars, stacks, strict=True):
                bar.set_alpha(0.55 if label.endswith("predicted") else 1)
            left += amounts
        for row, total in enumerate(left):
            axes.annotate(f"{total:.3g}", (total, row), (4, 0), textcoords="offset points", va="center")
        _labels_above(axes, list(stacks), 0.38)
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        axes.set(xlabel=f"{unit_name}, sum of the largest by kind")
        d.figure.legend(loc="outside upper left", ncols=3, columnspacing=1, handlelength=1)
        values = "; ".join(f"{label} {total:.3g}" for label, total in zip(stacks, left, strict=True))
        return d.svg(f"Memory in {unit_name}: {values}")


def dots(name: str, groups: Mapping[str, Sequence[float]], axis_label: str) -> Markup:
    """A metric with every seed as a point and the mean as a bar, one row per label."""
    with drawing(name, 60 + 38 * len(groups)) as d:
        for row, (label, values) in enumerate(groups.items()):
            colour = SERIES[0] if label.startswith("blocks") else SERIES[1]
            d.axes.plot(values, [row] * len(values), "o", color=colour, markersize=8, alpha=0.75, markeredgewidth=0)
            d.axes.plot([np.mean(values)], [row], "|", color=INK, markersize=18, markeredgewidth=2)
        _labels_above(d.axes, list(groups), 0.38)
        d.axes.margins(x=0.08)
        d.axes.set(xlabel=axis_label)
        means = "; ".join(f"{label} mean {np.mean(values):.4g} over {len(values)}" for label, values in groups.items())
        return d.svg(f"{axis_label}: {means}")


def _powers(lowest: float, highest: float) -> list[float]:
    """Noise levels to write on a logarithmic axis."""
    return [level for level in (0.001, 0.01, 0.1, 1.0, 10.0, 100.0) if lowest <= level <= highest]


def _blocks(axis: Axis, count: int) -> None:
    axis.set_major_locator(FixedLocator(list(range(count))))
    axis.set_minor_locator(NullLocator())


def _labels_above(axes: Axes, labels: Sequence[str], lift: float) -> None:
    """Each row's label over the row, since beside it there is no room on a phone."""
    for row, label in enumerate(labels):
        axes.annotate(label, (0, row - lift), xycoords=("axes fraction", "data"), va="center")
    axes.set_yticks([])
    axes.set_ylim(len(labels) - 0.6, -0.7)
    axes.spines["left"].set_visible(False)
