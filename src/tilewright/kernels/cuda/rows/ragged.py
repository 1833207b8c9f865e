"""Rows of which only a stretch counts, from one of the row's own values to another: bags of an embedding, say; traced
inside a kernel (see `engine`).

    row 0   x x x x x                     members of a group take every so manieth step of its stretch,
    row 1            x x                  `unroll` of them at once; neighbours along the lanes have
    row 2               (nothing)         the same stretch, and read the same of it
    row 3               x x x x x x x
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Int32

from ..common.control import loop
from .cta import Block, Cta


class RaggedCta(Cta):
    """Each group by itself: how many turns it takes, its stretch says."""

    def _walk(self, sweep: int, body: Callable[[Block], None]) -> None:
        stretch, row, size = self.spec.stretch, self.rows[0], self.plan.block_steps
        assert stretch is not None
        begin, end = (self._inside(row[name]) for name in (stretch.begin, stretch.end))
        turns = (cutlass.max(end - begin, Int32(0)) + (size - 1)) // size
        loop(Int32(0), turns, lambda turn: body(self._block(begin + turn * size, end)))

    def _inside(self, place: Any) -> Any:
        return Int32(cutlass.max(cutlass.min(place, place.dtype(self.space.steps)), place.dtype(0)))

    def _block(self, first: Any, end: Any) -> Block:
        """The steps from `first` on; those beyond the end count for nothing, and read what the last one does."""
        steps: list[Any] = []
        valid: list[list[Any] | None] = []
        for u in range(self.plan.unroll):
            step = first + (self.member + u * self.plan.group_threads)
            valid.append([step < end] * self.space.vector)
            steps.append(cutlass.min(step, end - 1))
        return Block(steps, valid, [None] * len(steps), by_element=False)
