"""Numbers of a thread as pairs of 16 bits, and as lines of 16 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Float32, Int32, cute

from ..conv.ptx import split_pair


def word(low: Any, high: Any, kind: str) -> Int32:
    """Two fp32 numbers, rounded to a pair of `kind`."""
    text = f"cvt.rn.{kind}x2.f32 {{$w0}}, {{$r1}}, {{$r0}};"
    return Int32(cute.arch.inline_ptx(text, write_only_types=[Int32], read_only_args=[Float32(low), Float32(high)]))


def split_words(low: Any, high: Any) -> tuple[Int32, Int32]:
    """Two fp32 numbers as a pair of fp16 ones, and the pair of what is left of them."""
    hi, lo = split_pair(Float32(low), Float32(high))
    return Int32(hi), Int32(lo)


def write_line(address: Any, words: Sequence[Any]) -> None:
    """Four words to memory, at a multiple of 16 bytes."""
    text = "st.global.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};"
    cute.arch.inline_ptx(text, read_only_args=[address, *words])
