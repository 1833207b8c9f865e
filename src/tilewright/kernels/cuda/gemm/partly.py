"""Where something is read that is broadcast over a part of a dimension: a matrix of several in a batch, a table's row."""

from __future__ import annotations

from typing import Any

Part = tuple[int, int]  # (each, count): at position i it is read at i // each % count; with a count of 0 at i // each


def part_of(size: int, whole: int, each: int) -> Part | None:
    """Of what has `size` along a dimension of `whole`, for `each` neighbours the same; None where it is read at the
    position itself, or is one for all."""
    return None if size in (1, whole) else (each, 0 if size * each == whole else size)


def placed(at: Any, part: Part | None) -> Any:
    """Where it is read for this position."""
    if part is None:
        return at
    each, count = part
    at = at if each == 1 else at // each
    return at % count if count else at
