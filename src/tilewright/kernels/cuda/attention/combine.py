"""Attention split along keys: what its parts gave becomes the result, in one pass.

    partial     (parts, *batch, columns) fp32: each part's result, normalised by its own sums
    logarithms  (parts, *batch) fp32: log of these sums; minus infinity where a part saw nothing
    out         sum over parts of partial exp(logarithm - largest) / sum over parts of exp(logarithm - largest)

Without softmax the parts are added. A thread has one column; parts are added in order, so a result repeats.
"""

from __future__ import annotations

from math import prod
from typing import Any

from cutlass import Float32, Int32, Int64, cute

from ..common import math as m
from ..common.control import when
from .shape import AttentionShape
from .softmax import LOG2_E, exp2

THREADS = 128


class CombineParts:
    """Of so many parts, into results of `dtype`."""

    def __init__(self, shape: AttentionShape, parts: int, *, dtype: str, softmax: bool, empty_is_zero: bool) -> None:
        self.columns, self.parts, self.dtype = shape.columns, parts, dtype
        self.rows = prod(shape.domain[:-1])
        self.softmax, self.empty_is_zero = softmax, empty_is_zero

    def launch(self, partial: Any, logarithms: Any, outs: list, stream: Any) -> None:
        """Emit the launch. `outs`: the result, and the logarithm of all sums, if that is wanted."""
        ctas = -(-self.rows * self.columns // THREADS)
        self._combine(partial, logarithms, outs).launch(grid=[ctas, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def _combine(self, partial: cute.Tensor, logarithms: cute.Tensor, outs: list) -> None:
        self._one(partial, logarithms, outs)

    def _one(self, partial: Any, logarithms: Any, outs: list) -> None:
        place = Int64(cute.arch.block_idx()[0]) * THREADS + cute.arch.thread_idx()[0]

        def work() -> None:
            row = place // self.columns
            shares, largest, total = self._shares(logarithms, row)
            made = Float32(0.0)
            for part, share in enumerate(shares):
                own = partial.iterator + (place + Int64(part * self.rows * self.columns))
                value = cute.make_tensor(own, cute.make_layout((1,)))[0]
                # a part that saw nothing has no number of its own
                made = made + (value if share is None else m.select(share == Float32(0.0), Float32(0.0), value * share))
            if total is not None:
                made = made / total
            spot = cute.make_tensor(outs[0].iterator + place, cute.make_layout((1,)))
            spot[0] = m.stored(made, self.dtype)
            if len(outs) > 1 and total is not None:
                when(place % self.columns == 0, lambda: self._logarithm(outs[1], row, largest, total))

        when(place < self.rows * self.columns, work)

    def _shares(self, logarithms: Any, row: Any) -> tuple[list[Any], Any, Any]:
        """Of each part what its result counts, the largest logarithm, and the sum of the shares."""
        if not self.softmax:
            return [None] * self.parts, None, None
        own = [
            cute.make_tensor(logarithms.iterator + (row + Int64(part * self.rows)), cute.make_layout((1,)))[0]
            for part in range(self.parts)
        ]
        largest = own[0]
        for x in own[1:]:
            largest = cute.arch.fmax(largest, x)
        base = m.select(largest == Float32(float("-inf")), Float32(0.0), largest)
        shares = [exp2((x - base) * Float32(LOG2_E)) for x in own]
        total = shares[0]
        for x in shares[1:]:
            total = total + x
        if self.empty_is_zero:
            total = m.select(total == Float32(0.0), Float32(1.0), total)
        return shares, base, total

    @staticmethod
    def _logarithm(out: Any, row: Any, largest: Any, total: Any) -> None:
        spot = cute.make_tensor(out.iterator + row, cute.make_layout((1,)))
        spot[0] = largest + cute.math.log2(total) * Float32(1 / LOG2_E)


def parts_of(number: Any, parts: int) -> tuple[Any, Any]:
    """The tile of work, and the part of it, that a CTA has: parts of one are neighbours."""
    return (number // parts, number % parts) if parts > 1 else (number, Int32(0))
