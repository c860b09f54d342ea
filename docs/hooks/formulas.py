"""Formulas as MathML, which browsers draw themselves: no script, no fonts, no request."""

import html
import re

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', flags=re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', flags=re.DOTALL)
LABEL = re.compile(r"\\label\{([\w-]+)\}")


def to_mathml(page: str, numbers: dict[str, int]) -> str:
    """A page's HTML with its formulas as MathML; labelled ones get their number and the anchor eq-NAME."""
    page = INLINE.sub(lambda found: mathml(found[1], "inline"), page)
    return DISPLAY.sub(lambda found: _display(found[1], numbers), page)


def mathml(tex: str, display: str) -> str:
    """One formula."""
    tilde = "<mi>&#x0007E;</mi>"  # the converter's \\sim, a letter with a letter's spacing
    return convert(html.unescape(tex).strip(), display=display).replace(tilde, "<mo>&#x0223C;</mo>")


def _display(tex: str, numbers: dict[str, int]) -> str:
    label = LABEL.search(tex)
    if label is None:
        return f'<div class="equation">{mathml(tex, "block")}</div>'
    number = f'<span class="equation-number">({numbers[label[1]]})</span>'
    return f'<div class="equation" id="eq-{label[1]}">{mathml(LABEL.sub("", tex), "block")}{number}</div>'
