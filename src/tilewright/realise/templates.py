"""The Jinja templates of rendered files, each beside the module that renders it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import jinja2


@cache
def template(package: str | None, name: str, *, trim: bool = False) -> jinja2.Template:
    """The template of this file name in the package. What it reads must be there; `trim`: lines that hold a statement
    alone leave no trace. Raises FileNotFoundError where there is no such file."""
    text = files(package or "").joinpath(name).read_text(encoding="utf-8")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False, trim_blocks=trim,
        lstrip_blocks=trim,
    )  # fmt: skip
    return environment.from_string(text)
