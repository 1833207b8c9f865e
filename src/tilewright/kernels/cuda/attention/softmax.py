"""The online softmax of the scores that a thread holds: two rows, 8 apart, of which four neighbouring lanes have a pair
of every 8 columns each.

    top      largest score of a row so far, over its four lanes
    total    sum of exp2((score - top) factor), of a lane
    onto     what results and sums are multiplied with, that were relative to the largest before

Of a row that has seen nothing but minus infinity the largest counts as 0, so that its weights are 0 and not NaN.
"""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, cute

from ..common import math as m
from ..conv.kernel import scale_exponent
from ..gemm.epilogue.epilogue import power_of_two
from ..gemm.fp32.pair import finite, magnitude

LOG2_E = 1.4426950408889634
ROWS = 2
_LANES = (1, 2)  # distances among the four lanes of a row
_LEAST = float("-inf")
_MOST_CHANGE = 126  # of an exponent: what changes more comes to nothing, or was nothing


def exp2(x: Any) -> Any:
    """Off by 2^-22 of it at most; of what is below 2^-126, 0."""
    text = "ex2.approx.ftz.f32 {$w0}, {$r0};"
    return Float32(cute.arch.inline_ptx(text, write_only_types=[Float32], read_only_args=[Float32(x)]))


def fused(x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""
    text = "fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};"
    given = [Float32(v) for v in (x, y, z)]
    return Float32(cute.arch.inline_ptx(text, write_only_types=[Float32], read_only_args=given))


def row_of(i: int) -> int:
    """The row, of a thread's two, of number i of its scores."""
    return i // 2 % 2


class OnlineSoftmax:
    """`factor`: scores times it are exponents of 2. `shift`: weights, and their sum, are 2^shift times
    as large."""

    def __init__(self, factor: Any, *, shift: int = 0) -> None:
        self.factor, self.shift = factor, shift
        self.top, self.total, self.onto = (cute.make_rmem_tensor((ROWS,), Float32) for _ in range(3))
        self.top.fill(_LEAST)
        self.total.fill(0.0)
        self.onto.fill(1.0)

    def weigh(self, scores: Any) -> None:
        """Scores become weights."""
        size = cute.size(scores)
        for r in range(ROWS):
            mine = [i for i in range(size) if row_of(i) == r]
            top = self.top[r]
            for i in mine:
                top = cute.arch.fmax(top, scores[i])
            for lanes in _LANES:
                top = cute.arch.fmax(top, cute.arch.shuffle_sync_bfly(top, offset=lanes))
            base = m.select(top == Float32(_LEAST), Float32(0.0), top) * self.factor
            self.onto[r] = exp2(self.top[r] * self.factor - base)
            self.top[r] = top
            total = self.total[r] * self.onto[r]
            base = base - Float32(float(self.shift)) if self.shift else base
            for i in mine:
                scores[i] = exp2(fused(scores[i], self.factor, -base))
                total = total + scores[i]
            self.total[r] = total

    def finish(self, r: int, *, empty_is_zero: bool, sink: Any = None) -> tuple[Any, Any]:
        """What a row's results are multiplied with: 1 / the sum of its weights, over its lanes; and the logarithm of
        the sum of exp(score). `sink`: one score more, whose value is 0."""
        total, onto = self.total[r], None
        for lanes in _LANES:
            total = total + cute.arch.shuffle_sync_bfly(total, offset=lanes)
        base = self.top[r] * self.factor
        if sink is not None:
            before, own = base, sink * Float32(LOG2_E)
            base = cute.arch.fmax(before, own)
        base = m.select(base == Float32(_LEAST), Float32(0.0), base)
        if sink is not None:
            onto = exp2(before - base)
            total = total * onto + exp2(own - base + Float32(float(self.shift)))
        logarithm = (base + cute.math.log2(total) - Float32(float(self.shift))) * Float32(1 / LOG2_E)
        if empty_is_zero:
            total = m.select(total == Float32(0.0), Float32(1.0), total)
        inverse = Float32(1.0) / total
        return (inverse if onto is None else inverse * onto), logarithm


class OnlineScale:
    """The same of weights that nothing normalises, where they become pairs of fp16 numbers: of each row a power of two
    brings the largest so far into [2^14, 2^15)."""

    def __init__(self) -> None:
        self.most, self.exponent = (cute.make_rmem_tensor((ROWS,), Int32) for _ in range(2))
        self.onto = cute.make_rmem_tensor((ROWS,), Float32)
        self.most.fill(0)
        self.exponent.fill(0)
        self.onto.fill(1.0)

    def weigh(self, scores: Any) -> None:
        """Scores are scaled."""
        size = cute.size(scores)
        for r in range(ROWS):
            mine = [i for i in range(size) if row_of(i) == r]
            most = self.most[r]
            for i in mine:
                most = m.larger(most, finite(magnitude(scores[i])))
            for lanes in _LANES:
                most = m.larger(most, cute.arch.shuffle_sync_bfly(most, offset=lanes))
            exponent = scale_exponent(most)
            change = m.smaller(m.larger(exponent - self.exponent[r], Int32(-_MOST_CHANGE)), Int32(_MOST_CHANGE))
            self.onto[r], self.most[r], self.exponent[r] = power_of_two(change), most, exponent
            by = power_of_two(exponent)
            for i in mine:
                scores[i] = scores[i] * by

    def finish(self, r: int, **_: Any) -> tuple[Any, Any]:
        """What a row's results are multiplied with; there is no logarithm."""
        return power_of_two(-self.exponent[r]), None
