"""The report as one page: Markdown for diffs and terminals, HTML (one file, no outside assets) for reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..facts.move import Event
from ..facts.run import SearchContext
from . import chart, drawing, plot
from .curves import curve
from .story import story


def markdown(context: SearchContext, events: Sequence[Event]) -> str:
    """The report in Markdown; everything that came from outside is escaped."""
    return environment().get_template("report.md.jinja").render(story=story(context, events))


def html(context: SearchContext, events: Sequence[Event]) -> str:
    """The report as a self-contained HTML document, readable in light and dark; everything from outside is escaped."""
    template = environment().get_template("report.html.jinja")
    search = plot.run_plot(curve(context, events))
    return template.render(story=story(context, events), search=search, geometry=chart, boxes=drawing, plot=plot)


@cache
def environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tilewright", "report"),
        autoescape=lambda name: name is not None and name.endswith((".html.jinja", ".svg.jinja")),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["md"] = _md
    environment.filters["shortened"] = _shortened
    return environment


def _md(text: object) -> str:
    """Text that stays text inside a Markdown paragraph, list or table cell; as little is escaped as will do."""
    flat = " ".join(str(text).split())
    flat = re.sub(r"([\\`*|])|(?<![^\W_])_|_(?![^\W_])|(?<=\])(?=[(:])", r"\\\g<0>", flat)
    flat = flat.replace("&", "&amp;").replace("<", "&lt;")
    return "\\" + flat if flat[:1] in tuple("#>+-=[~") else flat


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
