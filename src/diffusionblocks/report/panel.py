"""A figure with its title and what stands below it."""

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Panel:
    """What a section of the page with one figure shows."""

    title: str
    figure: Markup
    caption: str
