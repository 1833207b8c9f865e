"""The arithmetic of a split: an fp32 number and an exponent to a pair of fp16 ones; see `split` for what holds of them.

Most numbers take a few instructions: scaled, rounded to fp16 two at a time, subtracted, rounded again. What is not
finite or would vanish is split once more, with more care, where a lane has any. Three bf16 numbers hold all of an fp32
one (8 bits each, every rest is exact).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
from cutlass import Float16, Float32, Int32, Uint32, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from ...common import math as m
from ...common.control import when
from ..epilogue.epilogue import power_of_two
from ..host.plan import RESIDUAL_SHIFT

QUAD = 4  # elements of one access
TOP = 14  # the exponent of a row's largest element, scaled
INFINITE = 0x7F800000
TINY = 2.0**-24  # the smallest fp16
LEAST = 2.0**-133  # the smallest bf16


def magnitude(x: Any) -> Int32:
    """The bits of |x|, which order like |x|."""
    return x.bitcast(Int32) & Int32(0x7FFFFFFF)


def finite(bits: Any) -> Int32:
    """The magnitude, and 0 for what is not finite."""
    return m.select(bits < Int32(INFINITE), bits, Int32(0))


def exponent_of(bits: Any) -> Int32:
    """What puts a number of this magnitude into [2^14, 2^15); 0 for zero."""
    raised = magnitude(bits.bitcast(Float32) * Float32(2.0**32))
    low = m.select(bits < Int32(1 << 23), (raised >> Int32(23)) - Int32(32), bits >> Int32(23))
    return m.select(bits == Int32(0), Int32(0), Int32(TOP + 127) - low)


def split_one(x: Any, y: Any) -> tuple[Any, Any]:
    """(hi, lo) of one element of any kind; y is x, scaled."""
    bits = magnitude(x)
    near = y.to(Float16)
    lost = m.both(bits != Int32(0), near.to(Float32) == Float32(0.0))
    tiny = m.select(x < Float32(0.0), Float32(-TINY), Float32(TINY))
    hi = m.select(m.either(lost, bits >= Int32(INFINITE)), tiny, near.to(Float32))
    return hi, (y - hi) * Float32(2.0**RESIDUAL_SHIFT)


def _asm(kind: Any, text: str, constraints: str, *values: Any) -> Any:
    operands = [v.ir_value() for v in values]
    dialect = llvm.AsmDialect.AD_ATT
    return llvm.inline_asm(
        kind, operands, text, constraints, has_side_effects=False, is_align_stack=False, asm_dialect=dialect
    )


def _larger(most: Any, x: Any) -> Float32:
    """max(most, |x|), NaN if either is."""
    text = "{ .reg .f32 t; abs.f32 t, $2; max.NaN.f32 $0, $1, t; }"
    return Float32(_asm(T.f32(), text, "=f,f,f", most, x))


def _packed(low: Any, high: Any) -> Int32:
    """Two fp32 numbers, rounded to a pair of fp16 ones."""
    return Int32(_asm(T.i32(), "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", low, high))


def _packed_wide(low: Any, high: Any) -> Int32:
    """Two fp32 numbers, rounded to a pair of bf16 ones."""
    return Int32(_asm(T.i32(), "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", low, high))


def _unpacked_wide(pair: Any) -> tuple[Any, Any]:
    return (pair << Int32(16)).bitcast(Float32), (pair & Int32(-65536)).bitcast(Float32)


def _unpacked(pair: Any) -> tuple[Float32, Float32]:
    text = "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, %s; }"
    low, high = (Float32(_asm(T.f32(), text % part, "=f,r", pair)) for part in "lh")
    return low, high


def highest(bits: Any, width: int, offset: int = 1) -> Any:
    """The most over the lanes of a segment of `width` that lie multiples of `offset` apart."""
    while offset < width:
        bits = cutlass.max(bits, cute.arch.shuffle_sync_bfly(bits, offset=offset))
        offset *= 2
    return bits


class Scale:
    """How elements of a row are scaled: by two powers of two, since one may be too large for a number."""

    def __init__(self, exponent: Any, *, least: float = TINY) -> None:
        """`least`: the smallest number of the type that it is rounded to."""
        half = exponent >> Int32(1)
        self._factors = power_of_two(half), power_of_two(exponent - half)
        largest = Float32(least / 2) * power_of_two(-half) * power_of_two(half - exponent)
        self._lost = _twice(largest)  # the largest that this type has as 0, scaled

    def apply(self, x: Any) -> Float32:
        return x * self._factors[0] * self._factors[1]

    def loses(self, x: Any) -> Any:
        """Whether it is 0 there, though it is none. Twice the bits, less one: zero becomes the largest of all."""
        return _twice(x) - Uint32(1) < self._lost


def _twice(x: Any) -> Uint32:
    """Twice the bits of |x|."""
    return x.bitcast(Uint32) + x.bitcast(Uint32)


def permuted(step: Any) -> Any:
    """Where K = `step` lies among the 16 that a wgmma takes, if a lane is to hold four neighbours (see `streamed`)."""
    inside = step % 16
    return step - inside + inside // 4 * 2 + inside % 2 + inside % 4 // 2 * 8


def split_quad(quad: Any, scales: list[Scale], odd: Any, *, planes: int = 2) -> list[Any]:
    """[hi, lo] of four elements, each as two words of two; `scales` of its elements; of one of the `planes` hi
    alone, of three those of bf16. `odd` is not 0 where some may be infinite or NaN."""
    scaled = [scale.apply(quad[e]) for e, scale in enumerate(scales)]
    if planes == 3:
        return _split_wide(quad, scaled, scales, odd)
    if planes == 1:
        return _rounded(quad, scaled, scales)
    made = [cute.make_rmem_tensor((2,), Int32) for _ in range(2)]
    for pair in range(2):
        low, high = scaled[2 * pair], scaled[2 * pair + 1]
        made[0][pair] = _packed(low, high)
        near = _unpacked(made[0][pair])
        rest = [low - near[0], high - near[1]]
        rest = [r * Float32(2.0**RESIDUAL_SHIFT) for r in rest]
        made[1][pair] = _packed(*rest)

    def again() -> None:
        for pair in range(2):
            both = [split_one(quad[e], scaled[e]) for e in (2 * pair, 2 * pair + 1)]
            for plane in range(2):
                made[plane][pair] = _packed(both[0][plane], both[1][plane])

    rare = odd != Int32(0)
    for e, scale in enumerate(scales):
        rare = m.either(rare, scale.loses(quad[e]))
    when(rare, again)
    return made


def _rounded(quad: Any, scaled: list[Any], scales: list[Scale]) -> list[Any]:
    """The one plane of fp16 of four elements: those that would be 0 are the least of their sign."""
    words = cute.make_rmem_tensor((2,), Int32)
    lost = [scale.loses(quad[e]) for e, scale in enumerate(scales)]
    for pair in range(2):
        words[pair] = _packed(scaled[2 * pair], scaled[2 * pair + 1])

    def again() -> None:
        least = [m.select(quad[e] < Float32(0.0), Float32(-TINY), Float32(TINY)) for e in range(QUAD)]
        kept = [m.select(gone, *both) for gone, *both in zip(lost, least, scaled, strict=True)]
        for pair in range(2):
            words[pair] = _packed(kept[2 * pair], kept[2 * pair + 1])

    when(m.either(m.either(lost[0], lost[1]), m.either(lost[2], lost[3])), again)
    return [words]


def split_soon(quad: Any, factor: Any) -> list[list[Any]]:
    """[hi, lo] of four elements, each as two words of two, of which it is yet to be seen that they are neither too
    large nor too small for that (`unsafe`)."""
    made: list[list[Any]] = [[], []]
    for pair in range(2):
        low, high = quad[2 * pair] * factor, quad[2 * pair + 1] * factor
        made[0].append(_packed(low, high))
        near = _unpacked(made[0][pair])
        rest = [low - near[0], high - near[1]]
        rest = [r * Float32(2.0**RESIDUAL_SHIFT) for r in rest]
        made[1].append(_packed(*rest))
    return made


def extremes(words: list[Any]) -> tuple[Any, Any]:
    """The least and the largest magnitudes of pairs of fp16, NaN if any is, with signs of no meaning."""
    least = most = words[0]
    for word in words[1:]:
        least = Int32(_asm(T.i32(), "min.xorsign.abs.f16x2 $0, $1, $2;", "=r,r,r", least, word))
        most = Int32(_asm(T.i32(), "max.NaN.xorsign.abs.f16x2 $0, $1, $2;", "=r,r,r", most, word))
    return least, most


def unsafe(least: Any, most: Any) -> tuple[Any, Any]:
    """Whether one is 0, and whether one is infinite or NaN."""
    none = (least & Int32(0x7FFF7FFF)) - Int32(0x00010001)
    beyond = (most & Int32(0x7FFF7FFF)) + Int32(0x04000400)
    signs = Int32(-0x7FFF8000)
    return (none & signs) != Int32(0), (beyond & signs) != Int32(0)


def _split_wide(quad: Any, scaled: list[Any], scales: list[Scale], odd: Any) -> list[Any]:
    """Three planes of bf16 of four elements, each as two words of two."""
    made = [cute.make_rmem_tensor((2,), Int32) for _ in range(3)]
    for pair in range(2):
        rest = [scaled[2 * pair], scaled[2 * pair + 1]]
        for plane in range(3):
            made[plane][pair] = _packed_wide(*rest)
            if plane < 2:
                near = _unpacked_wide(made[plane][pair])
                rest = [rest[0] - near[0], rest[1] - near[1]]

    def again() -> None:
        for pair in range(2):
            first = _unpacked_wide(_packed_wide(scaled[2 * pair], scaled[2 * pair + 1]))
            parts = [_three(quad[2 * pair + e], scaled[2 * pair + e], first[e]) for e in range(2)]
            for plane in range(3):
                made[plane][pair] = _packed_wide(parts[0][plane], parts[1][plane])

    rare = odd != Int32(0)
    for e, scale in enumerate(scales):
        rare = m.either(rare, scale.loses(quad[e]))
    when(rare, again)
    return made


def _three(x: Any, y: Any, near: Any) -> tuple[Any, Any, Any]:
    """The parts of one element of any kind, as fp32; y is x, scaled, and `near` the bf16 next to it. What is not finite
    travels in the last, which only the firsts of its partners meet."""
    bits = magnitude(x)
    infinite = bits >= Int32(INFINITE)
    lost = m.both(bits != Int32(0), near == Float32(0.0))
    least = m.select(x < Float32(0.0), Float32(-LEAST), Float32(LEAST))
    first = m.select(m.either(lost, infinite), least, near)
    rest = y - first
    both = _unpacked_wide(_packed_wide(rest, rest))
    second = m.select(infinite, Float32(0.0), both[0])
    return first, second, m.select(infinite, x, rest - second)


class SeenMagnitudes:
    """The largest finite magnitudes that a thread has seen, of one row or of four, and whether it saw others."""

    def __init__(self, rows: int) -> None:
        self.most = cute.make_rmem_tensor((rows,), Int32)
        self.odd = cute.make_rmem_tensor((1,), Int32)
        self.odd[0] = Int32(0)
        for row in range(rows):
            self.most[row] = Int32(0)

    def look(self, quads: list[Any]) -> None:
        rows = cute.size(self.most)
        for row in range(rows):
            mine = [quad[e] for quad in quads for e in range(row, QUAD, rows)]
            highest = Float32(0.0)
            for x in mine:
                highest = _larger(highest, x)
            bits = cute.make_rmem_tensor((1,), Int32)
            bits[0] = highest.bitcast(Int32)
            when(bits[0] >= Int32(INFINITE), partial(self._without, mine, bits))
            self.most[row] = cutlass.max(self.most[row], bits[0])

    def _without(self, mine: list[Any], bits: Any) -> None:
        """The largest again, of what is finite."""
        self.odd[0] = Int32(1)
        highest = Int32(0)
        for x in mine:
            highest = cutlass.max(highest, finite(magnitude(x)))
        bits[0] = highest
