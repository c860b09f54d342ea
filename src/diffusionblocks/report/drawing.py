"""Matplotlib as inline SVG, 340 px wide, whose colours are CSS variables of the page.

Text stays text (12 px at full size), so that it takes the page's font and can be read aloud, found and copied.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH = 340
# Stand-ins that matplotlib writes and the page's variables replace.
INK, MUTED, GRID, PAPER = "#010101", "#020202", "#030303", "#040404"
SERIES = ("#050501", "#050502", "#050503", "#050504", "#050505")
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--line", PAPER: "--paper"} | {
    colour: f"--series-{k}" for k, colour in enumerate(SERIES)
}
DASHES = ("-", (0, (6, 2)), (0, (2, 2)))
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans"],  # to measure with; the page shows its own
    "font.size": 12,
    "axes.labelsize": 12,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "legend.fontsize": 12,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 1,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.frameon": False,
    "lines.linewidth": 2,
}


class Drawing:
    """One figure: its axes to draw in, and its SVG once drawn."""

    def __init__(self, name: str, height: int):
        self.name = name
        # One inch is 72 units of an SVG, which are shown as pixels.
        self.figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        self.axes: Axes = self.figure.subplots()

    def svg(self, label: str) -> Markup:
        """The figure as SVG, described by `label` to those who do not see it."""
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self.figure.savefig(out, format="svg", metadata=nothing)
        text = out.getvalue()
        body = text[text.index(">", text.index("<svg")) + 1 :]
        for colour, variable in _VARIABLES.items():
            body = body.replace(colour, f"var({variable})")
        for reference in ('id="', 'href="#', "url(#"):  # ids are unique on the page
            body = body.replace(reference, f"{reference}{self.name}-")
        height = self.figure.get_figheight() * 72
        return Markup(
            f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
            f'height="{height:g}" xmlns:xlink="http://www.w3.org/1999/xlink">{body}'
        )


@contextmanager
def drawing(name: str, height: int) -> Iterator[Drawing]:
    """A figure to draw in, in the report's style. `name` is unique on the page."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        yield Drawing(name, height)
