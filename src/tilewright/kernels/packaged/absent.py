"""Stands for the CuTe DSL, which an exported package does not have: names of it resolve, and nothing comes of them."""

from __future__ import annotations

import re
import types
from typing import Any


class Absent:
    """Any name of the DSL: a decorator gives the function as it is, a class that is inherited from adds nothing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    @property
    def width(self) -> int:
        """Of an element type, which planning asks for: its bits."""
        name = self._name.rpartition(".")[2]
        found = re.match(r"(?:B?Float|U?[Ii]nt)(\d+)", name)
        if found is None and name != "Boolean":
            raise AttributeError("width")
        return int(found.group(1)) if found else 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorated = args[0] if len(args) == 1 and not kwargs else None
        return decorated if isinstance(decorated, types.FunctionType | type) else self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __getitem__(self, item: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return self._name


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(name)
