"""MkDocs hook: numbers the formulas, and puts in what is generated when the site is built.

A page asks for a picture with `<!-- picture: NAME -->` and for text with `<!-- generated: NAME -->`. A display formula
that ends in `\\label{NAME}` gets a number, counted over the site in reading order; `(@NAME)` refers to it.
"""

import os.path
import re
from typing import Any

import ablation
import command_line
import drawing
import formulas
import pictures
import results
import settings
from mkdocs.exceptions import PluginError

LABEL = re.compile(r"\\label\{([\w-]+)\}")
REFERENCE = re.compile(r"\(@([\w-]+)\)")
TEXT = re.compile(r"<!-- generated: ([\w-]+) -->")
PICTURE = re.compile(r"<!-- picture: ([\w-]+) -->")

GENERATED = {
    "ablations": ablation.page,
    "command-line": command_line.reference,
    "layer-memory": results.layer_memory,
    "mlp-family": settings.example,
    "memory-ratios": results.memory_ratios,
    "planner": ablation.planner,
    "presets": settings.presets,
    "edges": settings.edges,
    "plan": settings.plan,
    "public-names": settings.public_names,
    "recurrent-vit": lambda: settings.example("recurrent_vit"),
    "results": results.page,
    "step-time": results.step_time,
}

equations: dict[str, tuple[int, str]] = {}
"""Number and page of each labelled formula."""


def on_nav(nav: Any, config: Any, files: Any) -> None:
    """Count the labelled formulas in reading order."""
    equations.clear()
    for page in nav.pages:
        for name in LABEL.findall(page.file.content_string):
            if name in equations:
                raise PluginError(f"{page.file.src_uri}: a second formula is labelled {name}")
            equations[name] = len(equations) + 1, page.file.src_uri


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put generated text in, and make references links."""
    here = page.file.src_uri
    markdown = TEXT.sub(lambda found: look_up(GENERATED, found[1], here)(), markdown)

    def link(found: re.Match[str]) -> str:
        number, target = look_up(equations, found[1], here)
        path = os.path.relpath(target, os.path.dirname(here) or ".")
        return f"[({number})]({'' if target == here else path}#eq-{found[1]})"

    return REFERENCE.sub(link, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Turn formulas into MathML and put pictures in."""
    numbers = {name: number for name, (number, _) in equations.items()}
    html = formulas.to_mathml(html, numbers)
    page.present_anchor_ids = (page.present_anchor_ids or set()) | set(re.findall(r'id="(eq-[\w-]+)"', html))
    return PICTURE.sub(lambda found: drawing.figure(look_up(pictures.PICTURES, found[1], page.file.src_uri)), html)


def look_up(table: dict[str, Any], name: str, page: str) -> Any:
    """table[name], or an error that ends the build."""
    if name not in table:
        raise PluginError(f"{page}: {name} is not one of {', '.join(table)}")
    return table[name]
