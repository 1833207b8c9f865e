"""From registers to rows of a matrix in memory: pairs of neighbouring columns, two or four elements at a time.

Where rows start at multiples of four elements, the even lanes of a pair give their next pair of columns for the odd
ones' this pair, and a warp's store writes 8 rows x 64 bytes of fp32:

    columns    8q .. 8q + 7                8q + 8 .. 8q + 15
    lanes      0  0  1  1  2  2  3  3     0  0  1  1  2  2  3  3    as wgmma leaves them
               0  0  0  0  2  2  2  2     1  1  1  1  3  3  3  3    as they are written
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Int16, Int32, cute

from .. import math as m
from ..control import when

Place = tuple[Any, Any, Any]  # (row, column, layer)


def words_of(pair: Sequence[Any]) -> list[Any]:
    """Two neighbouring elements as 32-bit words; of 8 bits in the lower half of one."""
    width = type(pair[0]).width
    if width == 32:
        return [value if type(value) is Int32 else value.bitcast(Int32) for value in pair]
    held = cute.make_rmem_tensor((2,), type(pair[0]))
    for e, value in enumerate(pair):
        held[e] = value
    if width == 8:
        return [Int32(cute.recast_tensor(held, Int16)[0]) & Int32(0xFFFF)]
    return [cute.recast_tensor(held, Int32)[0]]


def exchanged(words: list[list[Any]]) -> tuple[list[Any], Any]:
    """Of this pair and the next, of this lane and the one beside it, four neighbours; and how far they lie behind the
    lane's first."""
    odd = cute.arch.lane_idx() % 2 == 1
    first, second = [], []
    for this, following in zip(*words, strict=True):
        kept = m.select(odd, following, this)
        theirs = cute.arch.shuffle_sync_bfly(m.select(odd, this, following), offset=1)
        first.append(m.select(odd, theirs, kept))
        second.append(m.select(odd, kept, theirs))
    return [*first, *second], m.select(odd, Int32(6), Int32(0))


def write_pairs(c: Any, pairs: list[list[Any]], firsts: list[Place], sizes: tuple[Any, Any], *, vector: int) -> None:
    """Neighbours, two by two; `firsts`: where each pair begins. `vector`: rows of C start at multiples of so many
    elements: from 4 on, every other pair is followed by the next of its row."""
    if vector >= 4:
        for i in range(0, len(pairs), 2):
            write_four(c, pairs[i : i + 2], firsts[i], sizes)
        return
    for first, pair in zip(firsts, pairs, strict=True):
        write_pair(c, pair, first, sizes, vector=vector)


def write_four(c: Any, made: list[list[Any]], at: Place, sizes: tuple[Any, Any]) -> None:
    """This pair and the next, of this lane and the one beside it; `at`: of this lane's first pair."""
    width = c.element_type.width
    words, shift = exchanged([words_of(pair) for pair in made])
    if width == 8:
        words = [words[0] | (words[1] << Int32(16))]
    held = cute.make_rmem_tensor((len(words),), Int32)
    for i, word in enumerate(words):
        held[i] = word
    row, column, layer = at
    column = column + shift
    start = c.iterator + cute.crd2idx((row, column, layer), c.layout)
    pointer = cute.recast_ptr(start.align(4 * len(words)), dtype=Int32)
    target = cute.make_tensor(pointer, cute.make_layout((len(words),)))
    when(m.both(row < sizes[0], column < sizes[1]), lambda: cute.autovec_copy(held, target))


def write_pair(c: Any, pair: list[Any], at: Place, sizes: tuple[Any, Any], *, vector: int) -> None:
    """Both in one access where rows start at multiples of two elements."""
    row, column, layer = at
    if vector == 2:
        held = cute.make_rmem_tensor((2,), c.element_type)
        for e, value in enumerate(pair):
            held[e] = value
        start = c.iterator + cute.crd2idx((row, column, layer), c.layout)
        target = cute.make_tensor(start.align(c.element_type.width // 4), cute.make_layout((2,)))
        when(m.both(row < sizes[0], column < sizes[1]), lambda: cute.autovec_copy(held, target))
        return
    for e, value in enumerate(pair):
        there = cute.make_tensor(
            c.iterator + cute.crd2idx((row, column + e, layer), c.layout), cute.make_layout((1,))
        )  # fmt: skip
        within = m.both(row < sizes[0], column + e < sizes[1])
        when(within, lambda there=there, value=value: there.__setitem__(0, value))
