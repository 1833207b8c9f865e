"""From registers to rows of a matrix in memory: pairs of neighbouring columns, two, four or eight elements at a time.

Where rows start at multiples of four elements, the even lanes of a pair give their next pair of columns for the odd
ones' this pair, and a warp's store writes 8 rows x 64 bytes of fp32:

    columns    8q .. 8q + 7                8q + 8 .. 8q + 15
    lanes      0  0  1  1  2  2  3  3     0  0  1  1  2  2  3  3    as wgmma leaves them
               0  0  0  0  2  2  2  2     1  1  1  1  3  3  3  3    as they are written

Of elements of one byte each lane gets the pairs of all four in one group of 8 columns, and a warp's store writes 8 rows
x 32 bytes, which is what memory takes at once. Masks are such bytes, 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Boolean, Int16, Int32, Uint8, cute

from ...common import math as m
from ...common.control import when

Place = tuple[Any, Any, Any]  # (row, column, layer)


def words_of(pair: Sequence[Any]) -> list[Any]:
    """Two neighbouring elements as 32-bit words; of 8 bits in the lower half of one."""
    if type(pair[0]) is Boolean:
        return [m.select(pair[0], Int32(1), Int32(0)) | m.select(pair[1], Int32(256), Int32(0))]
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


def gathered(words: Sequence[Any]) -> tuple[list[Any], Any]:
    """Of four pairs of bytes, of this lane and the three beside it, eight neighbours as two words; and how far they lie
    behind the lane's first. Lanes two apart exchange two pairs, and then lanes one apart."""
    lane = cute.arch.lane_idx() % 4
    odd, upper = lane & 1, lane >> 1
    low, high = (words[i] | (words[i + 1] << Int32(16)) for i in (0, 2))
    up = upper == 1
    own = m.select(up, high, low)
    theirs = cute.arch.shuffle_sync_bfly(m.select(up, low, high), offset=2)
    wanted = Int32(0x5410) ^ upper * Int32(0x4444) ^ odd * Int32(0x2222)  # the lower lane's half first
    kept, given = (Int32(cute.arch.prmt(own, theirs, wanted ^ Int32(turn))) for turn in (0, 0x2222))
    got = cute.arch.shuffle_sync_bfly(given, offset=1)
    joined = Int32(0x5410) ^ odd * Int32(0x4444)
    return [Int32(cute.arch.prmt(kept, got, joined ^ Int32(turn))) for turn in (0, 0x2222)], lane * 6


def write_pairs(
    c: Any, pairs: list[list[Any]], firsts: list[Place], sizes: tuple[Any, Any], *, vector: int, following: int = 1
) -> None:
    """Neighbours, two by two; `firsts`: where each pair begins. `vector`: rows of C start at multiples of so many
    elements: from 4 on, every other pair is followed by the next of its row. `following`: so many pairs of a row
    follow one another, known to be more than that."""
    if vector >= 4:
        each = 4 if vector >= 8 and following % 4 == 0 and _is_byte(c.element_type) else 2
        for i in range(0, len(pairs), each):
            write_together(c, pairs[i : i + each], firsts[i], sizes)
        return
    for first, pair in zip(firsts, pairs, strict=True):
        write_pair(c, pair, first, sizes, vector=vector)


def _is_byte(kind: Any) -> bool:
    return kind is Boolean or kind.width == 8


def write_together(c: Any, made: list[list[Any]], at: Place, sizes: tuple[Any, Any]) -> None:
    """This pair and the next, of this lane and the one beside it; or four pairs of bytes, of four lanes. `at`: of this
    lane's first pair."""
    words: list[Any] = [words_of(pair) for pair in made]
    if len(made) == 4:
        words, shift = gathered([word for (word,) in words])
    else:
        words, shift = exchanged(words)
        if _is_byte(c.element_type):
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
        kind = Uint8 if c.element_type is Boolean else c.element_type
        held = cute.make_rmem_tensor((2,), kind)
        for e, value in enumerate(pair):
            held[e] = m.cast(value, "u8") if kind is Uint8 else value
        start = c.iterator + cute.crd2idx((row, column, layer), c.layout)
        pointer = cute.recast_ptr(start.align(kind.width // 4), dtype=kind)
        target = cute.make_tensor(pointer, cute.make_layout((2,)))
        when(m.both(row < sizes[0], column < sizes[1]), lambda: cute.autovec_copy(held, target))
        return
    for e, value in enumerate(pair):
        there = cute.make_tensor(
            c.iterator + cute.crd2idx((row, column + e, layer), c.layout), cute.make_layout((1,))
        )  # fmt: skip
        within = m.both(row < sizes[0], column + e < sizes[1])
        when(within, lambda there=there, value=value: there.__setitem__(0, value))
