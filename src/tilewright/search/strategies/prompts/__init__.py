"""The prompts, as data: jinja2 files beside this one, and what fills them. VERSION goes up with their words."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

VERSION = 5


def render(name: str, **values: Any) -> str:
    """The prompt `name` with these values; one that is missing is an error."""
    return _environment().get_template(f"{name}.jinja").render(**values).strip()


@cache
def _environment() -> Environment:
    """Its templates are compiled once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("tilewright.search.strategies", "prompts"), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=False, autoescape=False,
    )  # fmt: skip
