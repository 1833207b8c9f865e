"""The prompts, as data: jinja2 files beside this one, and what fills them. VERSION goes up with their words."""

from __future__ import annotations

from typing import Any

VERSION = 2


def render(name: str, **values: Any) -> str:
    """The prompt `name` with these values; one that is missing is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tilewright.strategies", "prompts"), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=False, autoescape=False,
    )  # fmt: skip
    return environment.get_template(f"{name}.jinja").render(**values).strip()
