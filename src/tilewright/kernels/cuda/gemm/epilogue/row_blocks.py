"""Rows of a product reduced while its sums are in registers: C is never written, what is of each 64 columns is.

    a part of a sum, 64 rows x 64 columns of it      a thread: 2 rows x 16 columns; four lanes share a row
    for each row: state of 16 values (a tree) -> two exchanges between neighbouring lanes -> one lane writes

    what is written is (M, blocks, batch) of fp32 for each value of a state, one behind the other: all maxima, all sums

A state is that of `reducers`: a sum, a maximum, a maximum and the sum of exponentials beside it, a count with mean and
squared deviations, an extremum and where it is (its column, exact in fp32 below 2^24). Another kernel joins the blocks
of a row. Columns outside of C count for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Float32, Int32, cute

from ...common import math as m
from ...common.control import when
from ...rows.reducers import Reducer
from .epilogue import BLOCK, EpilogueStore
from .expression import TileAt

WIDTH = 64  # columns of a block
_PAIRS = WIDTH // 8
# Values of a state, by the reduction.
STATES = {"sum": 1, "max": 1, "min": 1, "softmax_stats": 2, "moments": 3, "argmax": 2, "argmin": 2}


def states(reductions: Sequence[str]) -> int:
    """Values of all their states."""
    return sum(STATES[op] for op in reductions)


class RowBlockEpilogue(EpilogueStore):
    """A EpilogueStore whose function gives a tuple, what each of `reductions` takes of an element."""

    own_columns = True

    def __init__(self, reductions: Sequence[str], **more: Any) -> None:
        super().__init__("f32", vector=1, **more)
        if self.swap_ab or self.function is None:
            raise ValueError("rows of a product are reduced as they lie, and what of them, a function says")
        self.reductions = tuple(reductions)
        self.reducers = [Reducer(op=op, source="f32", dtype="f32") for op in reductions]

    def _value(self, product: Any, loaded: dict[str, Any], at: tuple[Any, Any, Any]) -> Any:
        made = self._called(product, loaded, at)
        return [reducer.prepare(value) for reducer, value in zip(self.reducers, made, strict=True)]

    def store(
        self, total: Any, places: Any, c: Any, operands: Sequence[Any], exponents: Sequence[Any], *,
        at: TileAt, through: Any = None, block: int = BLOCK,
    ) -> None:  # fmt: skip
        """Write the states of one part of a tile."""
        corner, sizes = at
        layer, block = corner[2], block if self.names else BLOCK
        pairs = cute.size(total) // 4
        rows = [corner[0] + places[((0, r, 0),)][0] for r in range(2)]
        columns = [corner[1] + places[((0, 0, q),)][1] for q in range(pairs)]
        if exponents:
            last = (sizes[0] - 1, sizes[1] - 1)
            self._scale(total, exponents, rows, columns, layer=layer, last=last)
        blocks = cute.ceil_div(sizes[1], WIDTH)
        leads = cute.arch.lane_idx() % 4 == 0
        for first in range(0, pairs, _PAIRS):
            mine = range(first, first + _PAIRS)
            seen: dict[tuple[int, int], Any] = {}
            for numbers in self._blocks(mine, block):
                firsts = [(rows[r], columns[q], layer) for r, q in numbers]
                seen |= zip(numbers, self._pairs(total, operands, firsts, sizes, numbers), strict=True)
            positions = [columns[q] + e for q in mine for e in range(2)]
            valid = [position < sizes[1] for position in positions]
            place = columns[first] // WIDTH
            for r, row in enumerate(rows):
                values = [seen[r, q][e] for q in mine for e in range(2)]
                states = self._states(values, valid, positions)
                inside = m.both(leads, m.both(row < sizes[0], place < blocks))
                when(inside, lambda states=states, row=row, place=place: self._put(c, states, (row, place, layer)))

    def _states(self, values: list[Any], valid: list[Any], positions: list[Any]) -> list[Any]:
        """Of a row's part in this thread and in the three beside it, all components in order."""
        found: list[Any] = []
        for i, reducer in enumerate(self.reducers):
            state = reducer.block([v[i] for v in values], valid, positions)
            for offset in (1, 2):
                beside = tuple(cute.arch.shuffle_sync_bfly(x, offset=offset) for x in state)
                state = reducer.merge(state, beside)
            found += state
        return found

    @staticmethod
    def _put(c: Any, states: list[Any], at: tuple[Any, Any, Any]) -> None:
        """`c` is where the first value goes; the others' tensors lie behind its last layer."""
        row, column, layer = at
        for i, value in enumerate(states):
            number = value.to(Float32) if type(value) is Int32 else value
            c[(row, column, layer + i * cute.size(c, mode=[2]))] = number
