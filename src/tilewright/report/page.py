"""The report as one page: Markdown for diffs and terminals, HTML (one file, no outside assets) for reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..facts.move import Event
from ..facts.run import SearchContext
from . import chart, drawing, plot
from .attribution import NOT_MEASURED
from .curves import curve
from .story import story

_USE = """\
import tilewright
Model = tilewright.load({folder!r})  # your Model's subclass: same constructor, same state_dict

# or as a package that needs neither Tilewright nor a compiler:
#   tilewright export {folder} --name fast_{name}
import fast_{name}
module = fast_{name}.load(module)"""


def markdown(context: SearchContext, events: Sequence[Event], *, folder: str = "DIR") -> str:
    """The report in Markdown; everything that came from outside is escaped. `folder`: of the run."""
    use = _use(context, folder)
    return environment().get_template("report.md.jinja").render(story=story(context, events), use=use)


def html(context: SearchContext, events: Sequence[Event], *, folder: str = "DIR") -> str:
    """The report as a self-contained HTML document, readable in light and dark, and on a phone; everything from outside
    is escaped."""
    template = environment().get_template("report.html.jinja")
    search = plot.run_plot(curve(context, events))
    return template.render(
        story=story(context, events), search=search, geometry=chart, boxes=drawing, plot=plot,
        use=_use(context, folder), unmeasured=NOT_MEASURED,
    )  # fmt: skip


def _use(context: SearchContext, folder: str) -> str:
    """How the result is used, as code."""
    name = re.sub(r"\W+", "_", context.problem.name.lower(), flags=re.ASCII).strip("_") or "module"
    return _USE.format(folder=folder, name=name)


@cache
def environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tilewright", "report"),
        autoescape=lambda name: name is not None and name.endswith((".html.jinja", ".svg.jinja")),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        auto_reload=False,  # they do not change while a process lives: looking costs a tenth of a page's time
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
