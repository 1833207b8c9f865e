"""Where threads that copy find the chunks of an implicit A, and where these lie in a stage (see `im2col`).

    chunk q of row r of a stage lies at r * 128 + (q xor r mod 8) * 16: TMA's 128-byte swizzle, which wgmma reads

Threads that copy have chunk thread % 8 of the rows thread // 8, thread // 8 + 16 ..: eight neighbours read 128 bytes of
one pixel, and none of them meets another in a bank. Offsets are in chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32

from .im2col import CHUNK, CHUNKS, LINE
from .shape import GROUP, ConvShape


@dataclass(frozen=True, slots=True)
class PixelAddress:
    """A row of A: the chunk of x at which tap 0 of channel 0 lies, perhaps outside of x, and a bit for each tap along
    each dimension that is tested: whether it lies inside."""

    offset: Any
    bits: Any


@dataclass(frozen=True, slots=True)
class Tap:
    """A chunk of K: how far it is from a row's offset, its tap along each dimension, and whether K has it; None where K
    has all."""

    offset: Any
    taps: tuple[Any, Any, Any]
    inside: Any


class Im2col:
    """The addresses of A's chunks. `walk`: strides of x along (sample, group, channel, three spatial dimensions)."""

    def __init__(self, shape: ConvShape, walk: tuple[int, ...]) -> None:
        of_n, of_g, of_c, *places = walk
        if (of_c != 1 and shape.channels > 1) or any(step % GROUP for step in (of_n, of_g, *places)):
            raise ValueError("an im2col is copied from pixels whose channels lie in one piece")
        self.shape = shape
        self.walk = tuple(step // GROUP for step in (of_n, of_g, *places))
        self.each = shape.channels // GROUP  # chunks of a tap
        self.count = self.each * shape.all_taps
        self.depth = self.count * GROUP  # K
        self.steps = -(-self.count // CHUNKS)
        tested = shape.tested()
        self.first_bit = {d: sum(shape.taps[e] for e in tested if e < d) for d in tested}

    def row(self, number: Any, group: Any) -> PixelAddress:
        """Of a pixel of the output; of one behind the last the last one's."""
        s, (of_n, of_g, *steps) = self.shape, self.walk
        out0, out1, out2 = s.out
        number = cutlass.min(number, Int32(s.pixels - 1))
        line, last = number // out2, number % out2
        plane, middle = line // out1, line % out1
        first = [o * s.stride[d] + s.start[d] for d, o in enumerate((plane % out0, middle, last))]
        offset = plane // out0 * of_n + group * of_g
        for place, step in zip(first, steps, strict=True):
            offset = offset + place * step
        bits = Int32(0)
        for d, bit in self.first_bit.items():
            for t in range(s.taps[d]):
                place = first[d] + t * s.step[d]
                bits = bits | ((Int32(place >= 0) & Int32(place < s.image[d])) << Int32(bit + t))
        return PixelAddress(offset, bits)

    def tap(self, step: Any, chunk: Any) -> Tap:
        """Of a chunk of a step of K."""
        s, (_, _, *steps) = self.shape, self.walk
        place = Int32(step) * CHUNKS + chunk
        taps = s.tap(place // self.each)
        offset = place % self.each
        for d, t in enumerate(taps):
            offset = offset + t * (s.step[d] * steps[d])
        inside = Int32(place < self.count) if self.count % CHUNKS else None
        return Tap(offset, taps, inside)

    def source(self, row: PixelAddress, tap: Tap) -> tuple[Any, Any]:
        """(offset, bytes that are read there) of a row's chunk: 0 bytes, and an offset in x, where it is all zeros."""
        there = tap.inside
        for d, bit in self.first_bit.items():
            test = row.bits >> (tap.taps[d] + Int32(bit)) & Int32(1)
            there = test if there is None else there & test
        if there is None:
            return row.offset + tap.offset, Int32(CHUNK)
        return (row.offset + tap.offset) * there, there * CHUNK

    @staticmethod
    def target(thread: Any) -> tuple[Any, Any, Any]:
        """(chunk, first row, byte in a stage) of a thread that copies; its next row lies ROWS_APART * LINE behind."""
        chunk, row = thread % CHUNKS, thread // CHUNKS
        return chunk, row, row * LINE + (chunk ^ (row % 8)) * CHUNK
