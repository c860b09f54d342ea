"""How the pictures look: SVG inside the page, in the theme's colours.

Ink is the text's colour and block colours are CSS variables, so that a picture can be read in the light and the dark
theme.
"""

import functools
import io
import re
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, BLOCKS = "#000001", ("#0000a0", "#0000a1", "#0000a2", "#0000a3")
COLOURS = {INK: "currentColor"} | {colour: f"var(--block-{k})" for k, colour in enumerate(BLOCKS)}
STYLE = {
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.titlesize": 8,
} | dict.fromkeys(
    ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor"), INK
)


@dataclass(frozen=True)
class Picture:
    """A drawing and what the page says below it."""

    draw: Callable[[], Figure]
    caption: str


def figure(picture: Picture) -> str:
    """The picture as an HTML figure."""
    return f"<figure>{svg(picture.draw)}<figcaption>{picture.caption}</figcaption></figure>"


@functools.cache
def svg(draw: Callable[[], Figure]) -> str:
    """Draw a figure as SVG; the same bytes every time, ids of its own, colours by name."""
    name, out = draw.__name__.replace("_", "-"), io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        drawn = draw()
        drawn.savefig(out, format="svg", bbox_inches="tight", pad_inches=0.04, metadata={"Date": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", out.getvalue()[out.getvalue().index("<svg") :], flags=re.DOTALL)
    head, rest = text.split(">", 1)
    head = re.sub(r' (height|width)="[^"]*"', "", head)  # the page's width decides
    text = f"{head}>{rest}"
    text = re.sub(r'\bid="|xlink:href="#|url\(#', lambda found: f"{found[0]}{name}-", text)
    text = text.replace("'DejaVu Sans', 'Bitstream Vera Sans', ", "")
    for colour, css in COLOURS.items():
        text = text.replace(colour, css)
    return text.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def log_axis(axes: Axes, ends: tuple[float, float] = (0.002, 80)) -> None:
    """A logarithmic sigma axis with plain labels (mathtext would bring a font of its own)."""
    axes.set_xscale("log")
    ticks = [t for t in (0.01, 0.1, 1, 10) if min(ends) <= t <= max(ends)]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlim(*ends)
