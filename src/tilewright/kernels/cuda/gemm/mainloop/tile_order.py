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
from ..host.plan import BAND, Point
from .k_range import KRange

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


class TileSchedule:
    """Of a Point's persistent clusters: which tile has which turn, and which steps of K it needs."""

    point: Point
    band: Band | None
    reach: KRange | None

    def _place(self, work: Any, rows: Any, columns: Any) -> tuple[Any, Any, Any]:
        """(row, column, layer of C) of a cluster tile: layers outermost, then bands, columns, rows of a band."""
        tiles = rows * columns
        layer = work // tiles
        rest = work - layer * tiles
        if self.band is not None:
            return *self.band.place(rest, rows, columns), layer
        reach = self.reach
        if reach is not None and reach.by_columns:
            rows, columns = columns, rows
        row, column = in_bands(rest, rows, columns, BAND)
        if reach is None:
            return row, column, layer
        row = rows - 1 - row if reach.backwards else row
        return (column, row, layer) if reach.by_columns else (row, column, layer)

    def _turn(self, work: Any, stride: Any, all_work: Any) -> Any:
        """The number of the cluster tile that has this turn."""
        return work if self.reach is None else self.reach.turn(work, stride, all_work)

    def _rounds(self, tiles: Any, steps: Any) -> tuple[Any, Any, Any]:
        """A cluster's first tile, the distance to its next, and the end of all."""
        p = self.point
        return cute.arch.block_idx()[0] // p.cluster, cute.arch.grid_dim()[0] // p.cluster, tiles

    def _steps(self, turn: Any, rows: Any, columns: Any, splits: Any, each: Any, steps: Any) -> tuple[Any, ...]:
        """(row, column, layer) of a cluster tile, and the first and the last of its steps of K."""
        row, column, layer = self._place(turn, rows, columns)
        begin = (layer - layer // splits * splits) * each
        return row, column, layer, *self._range(begin, cutlass.min(begin + each, steps), row, column, columns)

    def _range(self, begin: Any, end: Any, row: Any, column: Any, columns: Any) -> tuple[Any, Any]:
        """The first and the last step of a cluster tile; of one that the result does not depend on, none."""
        if self.reach is not None:
            begin, end = self.reach.steps(begin, end, row, column)
        return begin, end if self.band is None else select(self.band.needs(row, column, columns), end, begin)
