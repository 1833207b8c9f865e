"""In which order the cluster tiles of C have their turn.

Where a result depends on some diagonals alone, the tiles that it depends on have it first.

triu, tiles of H x W       # # # #     rows of tiles from above, in each the needed ones (#) from the left;
                           . # # #     then the others (.), which are written without a product
                           . . # #
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Boolean, Int32, cute

from ...common.control import loop, when
from ...common.math import both, select
from ..host.plan import Point

Bounds = tuple[int | None, int | None]


def in_bands(work: Any, rows: Any, columns: Any, band: int) -> tuple[Any, Any]:
    """(row, column) of the tile that is number `work`, where all are needed: bands of so many rows outermost, then
    columns, then rows of a band."""
    each = columns * band
    number = work // each
    first = number * band
    height = cutlass.min(rows - first, Int32(band))
    rest = work - number * each
    column = rest // height
    return first + rest - column * height, column


class Band:
    """Of a Point's cluster tiles those with an element (i, j) such that low <= j - i <= high."""

    def __init__(self, point: Point, diagonals: Bounds) -> None:
        self.tall = point.tile_m * point.cluster_m
        self.wide = point.tile_n * point.cluster_n
        self.low, self.high = diagonals

    def columns(self, row: Any, columns: Any) -> tuple[Any, Any]:
        """(first, count) of the needed tiles of a row of tiles."""
        first, last = Int32(0), columns - 1
        if self.low is not None:
            first = cutlass.max(row * self.tall + self.low, Int32(0)) // self.wide
        if self.high is not None:
            end = row * self.tall + (self.high + self.tall - 1)
            last = cutlass.min(last, select(end < Int32(0), Int32(-1), end // self.wide))
        return first, cutlass.max(last - first + 1, Int32(0))

    def needs(self, row: Any, column: Any, columns: Any) -> Boolean:
        first, count = self.columns(row, columns)
        return both(column >= first, column < first + count)

    def place(self, turn: Any, rows: Any, columns: Any) -> tuple[Any, Any]:
        """(row, column) of the tile that is number `turn`."""
        state = cute.make_rmem_tensor((3,), Int32)  # tiles still to pass, row, column; a column of -1: not found
        state[0], state[1], state[2] = Int32(turn), Int32(0), Int32(-1)

        def enough(row: Any, count: Any, column: Any) -> None:
            """The turn falls into a row with so many tiles, or lies beyond it."""
            missing = state[2] < Int32(0)
            found = both(missing, state[0] < count)
            state[1] = select(found, Int32(row), state[1])
            state[2] = select(found, Int32(column), state[2])
            state[0] = state[0] - select(missing, Int32(count), Int32(0))

        def needed(row: Any) -> None:
            first, count = self.columns(row, columns)
            enough(row, count, first + state[0])

        def other(row: Any) -> None:
            first, count = self.columns(row, columns)
            enough(row, columns - count, select(state[0] < first, state[0], state[0] + count))

        loop(Int32(0), rows, needed)
        when(state[2] < Int32(0), lambda: loop(Int32(0), rows, other))
        return state[1], state[2]
