"""How tables look on the terminal."""

from __future__ import annotations

from collections.abc import Collection

from rich import box
from rich.table import Table


def ruled(*headings: str, numbers: Collection[str] = (), whole: Collection[str] = (), title: str = "") -> Table:
    """An empty table. Columns of `numbers` are flush right; lines in columns of `whole` are not broken. `title` is
    markup."""
    drawn = Table(box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    drawn.title = f"[not italic]{title}[/]" if title else None
    for heading in headings:
        justify = "right" if heading in numbers else "left"
        drawn.add_column(heading, justify=justify, no_wrap=heading in whole)  # type: ignore[arg-type]
    return drawn
