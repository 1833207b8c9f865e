"""The sizes that a problem file leaves open (`DYNAMIC`), and the cases that show what depends on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...facts.errors import UserError
from ...facts.problem import OpenSize

_MOST = 3  # more sizes take too many cases


def open_sizes(given: Any, case: Mapping[str, Any], path: Path) -> tuple[OpenSize, ...]:
    """`given`, a dict of names and (least, greatest), as sizes of the main case. Raises UserError for anything else."""
    if not isinstance(given, dict):
        raise UserError(f"{path}: DYNAMIC must be a dict: names of arguments in CASES, each with (least, greatest)")
    if len(given) > _MOST:
        raise UserError(f"{path}: DYNAMIC has {len(given)} sizes, and {_MOST} are the most")
    return tuple(_size(str(name), value, case, path) for name, value in given.items())


def _size(name: str, given: Any, case: Mapping[str, Any], path: Path) -> OpenSize:
    size, said = case.get(name), f"{path}: DYNAMIC[{name!r}]"
    if type(size) is not int or not name.isidentifier():
        raise UserError(f"{said}: the first of CASES has no whole number of that name")
    if not isinstance(given, list | tuple) or len(given) != 2 or any(type(bound) is not int for bound in given):
        raise UserError(f"{said} is {given!r}; it must be two whole numbers, (least, greatest)")
    low, high = given
    if not (1 <= low < high and low <= size <= high and size > 1):
        raise UserError(f"{said} is ({low}, {high}); it must hold 1 <= least < greatest, and {size}, which is above 1")
    return OpenSize(name=name, size=size, low=low, high=high)


def showing(cases: Sequence[str], sizes: Sequence[OpenSize]) -> tuple[str, ...]:
    """The cases, and those that are like the first at other sizes: each size by itself, and all together. They are near
    it, since a kernel may be worth its launch at no other size."""
    first = json.loads(cases[0])
    near = {size.name: _near(size) for size in sizes}
    changed = [{name: other} for name, other in near.items()] if len(sizes) > 1 else []
    changed.append({name: _near(size, 2) for name, size in zip(near, sizes, strict=True)})
    more = (json.dumps({**first, **change}, sort_keys=True) for change in (*changed, near))
    return tuple(dict.fromkeys((*cases, *more)))


def _near(size: OpenSize, shares: int = 1) -> int:
    """A size in the range, less by that many eighths, or more where less is not allowed."""
    step = max(1, shares * size.size // 8) + (shares - 1)
    less, more = size.size - step, size.size + step
    return less if less >= max(2, size.low) else min(more, size.high)
