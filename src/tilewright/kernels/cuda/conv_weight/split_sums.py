"""What adds a weight's gradient up: of each element the sums of all splits, in their order, in fp32."""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass import Boolean, Float32, Int32, Int64, cute

from ..common import math as m
from ..common.control import loop, when
from ..conv.shape import GROUP
from .shape import WeightShape
from .tiles import WeightPoint

THREADS = 256
_AHEAD = 8  # splits that a thread asks for together


class SplitSums:
    """Writes the weight's gradient, (groups, A, B, taps), in its own type, from what WeightKernel wrote."""

    def __init__(self, shape: WeightShape, point: WeightPoint) -> None:
        self.shape, self.point = shape, point

    def launch(self, results: Any, out: Any, splits: Any, stream: Any) -> None:
        s = self.shape.windowed
        self.rows = self.shape.row_groups * GROUP
        self.count = s.groups * s.columns * self.rows
        kernel = self._kernel(results, out, splits)
        kernel.launch(grid=[-(-self.count // THREADS), 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def _kernel(self, results: cute.Tensor, out: cute.Tensor, splits: Int32) -> None:
        number = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
        when(number < self.count, partial(self._one, results, out, splits, number))

    def _one(self, results: Any, out: Any, splits: Any, number: Any) -> None:
        s, p = self.shape.windowed, self.point
        whole, row = number // self.rows, number % self.rows
        channel, tap = self.shape.row(row)
        rows, columns = p.rows * p.tiles[0], p.columns * p.tiles[1]
        first = (Int64(whole // s.columns) * columns + whole % s.columns) * rows + row
        total = added_up(results, first, s.groups * columns * rows, splits)

        def put() -> None:
            place = (Int64(whole) * s.channels + channel) * s.all_taps + tap
            there = cute.make_tensor(out.iterator + place, cute.make_layout((1,)))
            there[0] = total.to(out.element_type)

        when(channel < s.channels, put)


def added_up(results: Any, first: Any, apart: int, count: Any) -> Any:
    """The sum of so many fp32 numbers, `apart` elements from one another, in their order."""
    total = cute.make_rmem_tensor((1,), Float32)
    total[0] = Float32(0.0)

    def some(i: Any) -> None:
        found = []
        for j in range(_AHEAD):
            number = i * _AHEAD + j
            own = m.select(Boolean(number < count), number, count - 1)
            value = cute.make_tensor(results.iterator + (first + Int64(own) * apart), cute.make_layout((1,)))[0]
            found.append(m.select(Boolean(number < count), value, Float32(0.0)))
        for value in found:
            total[0] = total[0] + value

    loop(Int32(0), (count + (_AHEAD - 1)) // _AHEAD, some)
    return total[0]
