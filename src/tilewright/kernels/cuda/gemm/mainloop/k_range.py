"""Which steps of K a cluster tile of C needs, where elements of a factor are zero but for some diagonals.

tril(A) @ B, tiles of H rows      # . . .     steps of K in which a row of tiles has elements (#); the others are
                                  # # . .     neither loaded nor multiplied, so infinities of B that meet zeros alone
                                  # # # .     come to nothing
                                  # # # #

Tiles differ in length, then, and the long ones have their turn first: rows of tiles (columns, where B has the zeros)
from the end at which they are long, and every other round of the clusters backwards, so that who had the longest of
one round has the shortest of the next.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32

from ...common.math import select
from ..epilogue.expression import ALL, Diagonals
from ..host.plan import Point

Zeros = tuple[Diagonals, Diagonals]
NO_ZEROS: Zeros = (ALL, ALL)


class KRange:
    """`zeros`: of A (M, K) and of B (N, K) the first and the last diagonal (step of K - row) with elements."""

    def __init__(self, point: Point, zeros: Zeros) -> None:
        self.tall = point.tile_m * point.cluster_m
        self.wide = point.tile_n * point.cluster_n
        self.depth = point.depth
        self.zeros = zeros

    def steps(self, begin: Any, end: Any, row: Any, column: Any) -> tuple[Any, Any]:
        """Of the steps from `begin` to `end` those that a cluster tile needs; none of them: (x, x)."""
        for (low, high), corner, size in zip(
            self.zeros, (row * self.tall, column * self.wide), (self.tall, self.wide), strict=True
        ):
            if low is not None:
                begin = cutlass.max(begin, cutlass.max(corner + low, Int32(0)) // self.depth)
            if high is not None:
                last = cutlass.max(corner + (size + high), Int32(0))
                end = cutlass.min(end, (last + (self.depth - 1)) // self.depth)
        return begin, cutlass.max(begin, end)

    def turn(self, work: Any, stride: Any, all_work: Any) -> Any:
        """What has this turn, of `stride` turns a round: every other round is gone through backwards."""
        first = work // stride * stride
        count = cutlass.min(all_work - first, stride)
        return select(work // stride % 2 == 1, first + first + count - 1 - work, work)

    @property
    def by_columns(self) -> bool:
        """Whether lengths differ from column to column of tiles alone."""
        return self.zeros[0] == ALL

    @property
    def backwards(self) -> bool:
        """Whether the last row of tiles, or column, is the longest."""
        return self.zeros[1 if self.by_columns else 0][1] is not None
