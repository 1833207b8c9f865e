"""fp32 operands as pairs of fp16 matrices and exponents: x = (hi + lo) / 2^exponent, rounded at 2^-23 of x.

    X is (R, K, batch) with any strides; planes is (R, K, batch x 2) fp16, one mode contiguous; exponents is
    (R, batch x splits) int32

Each row (each chunk of K of it, where K is split) is scaled by a power of two that puts its largest finite element
into [2^14, 2^15), so that scaling is exact, and fp16 reaches to 2^-39 of that element. hi is the fp16 next to the
scaled x, lo the fp16 next to what is left (`shift` 11: times 2^11, which reaches to 2^-50).

What is not finite travels in lo, and hi is never zero but where x is:

    x = 0               hi = 0            lo = 0
    x = inf or NaN      hi = +-2^-24      lo = x
    scaled x < 2^-25    hi = +-2^-24      lo = scaled x - hi: the pair still sums to x

so hi*lo + lo*hi gives inf times a number, inf times 0 and NaN as fp32 gives them, and lo*lo, which nobody computes, is
never needed. Rows of zeros have exponent 0.

    along K ("k")       `group` threads a row; up to HELD elements of each stay in registers between maximum and split
    across K ("r")      a strip of up to 32 rows a CTA, 8 threads side by side; the chunk is read twice, then from L2
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float16, Float32, Int32, cute
from cutlass.memory import SmemAllocator

from .. import math as m
from ..control import loop, when
from .finish import power_of_two

HELD = 32  # elements of a row that a thread keeps
STRIPS = (32, 16, 8)  # rows of a CTA across K; 8 are a sector of 32 bytes
UNROLL = 4  # vectors that a thread loads before it looks at them
TOP = 14  # the exponent of a row's largest element, scaled
INFINITE = 0x7F800000
TINY = 2.0**-24  # the smallest fp16


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


def split_one(x: Any, exponent: Any, shift: int) -> tuple[Any, Any]:
    """(hi, lo) of one element."""
    half = exponent >> Int32(1)
    y = x * power_of_two(half) * power_of_two(exponent - half)
    bits = magnitude(x)
    near = y.to(Float16)
    lost = m.both(bits != Int32(0), near.to(Float32) == Float32(0.0))
    tiny = m.select(x < Float32(0.0), Float32(-TINY), Float32(TINY))
    hi = m.select(m.either(lost, bits >= Int32(INFINITE)), tiny, near.to(Float32))
    rest = y - hi
    if shift:
        rest = rest * Float32(2.0**shift)
    return hi.to(Float16), rest.to(Float16)


class _Chunk:
    """What a CTA works on: a chunk of K of some rows."""

    def __init__(self, x: Any, exponents: Any, length: Any) -> None:
        self.thread = cute.arch.thread_idx()[0]
        self.block, split, self.batch = cute.arch.block_idx()
        self.layer = self.batch * cute.arch.grid_dim()[1] + split
        self.rows = cute.size(x, mode=[0])
        self.begin = split * length
        self.end = cutlass.min(self.begin + length, cute.size(x, mode=[1]))
        self._exponents = exponents

    def note(self, row: Any, exponent: Any) -> None:
        self._exponents[(row, self.layer)] = exponent


class Split:
    """Splits (R, K) into planes. `vector`: elements of one access along the contiguous mode, 1 or 4."""

    def __init__(self, *, major: str, vector: int, group: int, held: bool, shift: int, strip: int = STRIPS[0]) -> None:
        self.major = major
        self.vector = vector
        self.group = group
        self.held = held
        self.shift = shift
        self.strip = strip
        self.threads = 1024 if major == "r" else max(group, 256)
        self.per = HELD // vector if held else UNROLL * 4 // vector

    @staticmethod
    def for_chunk(
        *, major: str, vector: int, chunk: int, shift: int, rows: int = 1 << 20, processors: int = 1
    ) -> Split:  # fmt: skip
        """The threads of a row so that it stays in registers, if it can; or strips so narrow that nine in ten of the
        multiprocessors have one, if they can be. `rows`: those of all chunks and batches."""
        group = 32
        while group < 1024 and group * HELD < chunk:
            group *= 4 if group < 128 else 2
        strip = next((s for s in STRIPS if -(-rows // s) * 10 >= processors * 9), STRIPS[-1])
        return Split(major=major, vector=vector, group=group, held=group * HELD >= chunk, shift=shift, strip=strip)

    def __call__(self, x: Any, planes: Any, exponents: Any, chunk: Any, stream: Any) -> None:
        """Emit the launch; `chunk` is K of a split."""
        rows, batches = cute.size(x, mode=[0]), cute.size(x, mode=[2])
        splits = cute.size(exponents, mode=[1]) // batches
        across = self.strip if self.major == "r" else self.threads // self.group
        kernel = self._across if self.major == "r" else self._along
        kernel(x, planes, exponents, chunk).launch(
            grid=[cute.ceil_div(rows, across), splits, batches], block=[self.threads, 1, 1], stream=stream
        )

    def _highest(self, bits: Any, width: int, offset: int = 1) -> Any:
        """The most over the lanes of a segment of `width` that lie multiples of `offset` apart."""
        while offset < width:
            bits = cutlass.max(bits, cute.arch.shuffle_sync_bfly(bits, offset=offset))
            offset *= 2
        return bits

    def _read(self, x: Any, start: Any, count: int) -> Any:
        held = cute.make_rmem_tensor((count,), Float32)
        for e in range(count):
            held[e] = Float32(0.0)
        pointer = x.iterator + start
        source = cute.make_tensor(pointer.align(count * 4), cute.make_layout((count,)))
        return held, source

    def _write(self, planes: Any, at: Any, held: Any, exponents: list[Any], inside: Any) -> None:
        count = cute.size(held)
        row, step, batch = at
        made = [split_one(held[e], exponents[e], self.shift) for e in range(count)]
        for plane in range(2):
            fragment = cute.make_rmem_tensor((count,), Float16)
            for e in range(count):
                fragment[e] = made[e][plane]
            start = planes.iterator + cute.crd2idx((row, step, batch * 2 + plane), planes.layout)
            target = cute.make_tensor(start.align(count * 2), cute.make_layout((count,)))
            when(inside, lambda fragment=fragment, target=target: cute.autovec_copy(fragment, target))

    @cute.kernel
    def _along(self, x: cute.Tensor, planes: cute.Tensor, exponents: cute.Tensor, chunk: Int32) -> None:
        self._rows_along(_Chunk(x, exponents, chunk), x, planes)

    @cute.kernel
    def _across(self, x: cute.Tensor, planes: cute.Tensor, exponents: cute.Tensor, chunk: Int32) -> None:
        self._rows_across(_Chunk(x, exponents, chunk), x, planes)

    def _load(self, x: Any, row: Any, batch: Any, steps: list[Any], inside: list[Any]) -> list[Any]:
        """Vectors of `row` at some steps of K; zeros where they are not inside."""
        found = []
        for step, there in zip(steps, inside, strict=True):
            held, source = self._read(x, cute.crd2idx((row, step, batch), x.layout), self.vector)
            when(there, lambda held=held, source=source: cute.autovec_copy(source, held))
            found.append(held)
        return found

    def _rows_along(self, chunk: _Chunk, x: Any, planes: Any) -> None:
        """A CTA takes threads / group rows, and of each one chunk of K."""
        row = chunk.block * (self.threads // self.group) + chunk.thread // self.group
        member = chunk.thread % self.group
        there, safe = row < chunk.rows, cutlass.min(row, chunk.rows - 1)
        stride = self.group * self.vector
        blocks = cute.ceil_div(chunk.end - chunk.begin, stride * self.per)
        most = cute.make_rmem_tensor((1,), Int32)
        most[0] = Int32(0)

        def load(number: Any) -> tuple[list[Any], list[Any], list[Any]]:
            first = chunk.begin + number * (stride * self.per) + member * self.vector
            steps = [first + i * stride for i in range(self.per)]
            inside = [m.both(there, step < chunk.end) for step in steps]
            return self._load(x, safe, chunk.batch, steps, inside), steps, inside

        def look(number: Any) -> tuple[list[Any], list[Any], list[Any]]:
            found = load(number)
            for held in found[0]:
                for e in range(self.vector):
                    most[0] = cutlass.max(most[0], finite(magnitude(held[e])))
            return found

        kept = look(Int32(0)) if self.held else None
        if kept is None:
            loop(Int32(0), blocks, lambda number: (look(number), None)[1])
        exponent = exponent_of(self._highest_of_row(most[0], chunk.thread))
        when(m.both(there, member == 0), lambda: chunk.note(row, exponent))

        def write(number: Any) -> None:
            for held, step, inside in zip(*(kept or load(number)), strict=True):
                self._write(planes, (safe, step, chunk.batch), held, [exponent] * self.vector, inside)

        if kept is not None:
            write(Int32(0))
        else:
            loop(Int32(0), blocks, write)

    def _highest_of_row(self, bits: Any, thread: Any) -> Any:
        """The most over the threads of a row."""
        bits = self._highest(bits, min(self.group, 32))
        warps = self.group // 32
        if warps <= 1:
            return bits
        board = SmemAllocator().allocate_tensor(Int32, cute.make_layout((self.threads // 32,)))
        when(cute.arch.lane_idx() == 0, lambda: board.__setitem__(thread // 32, bits))
        cute.arch.sync_threads()
        return self._highest(board[thread // self.group * warps + cute.arch.lane_idx() % warps], warps)

    def _rows_across(self, chunk: _Chunk, x: Any, planes: Any) -> None:
        """A CTA takes a strip of rows, which lie side by side, and one chunk of K."""
        lanes = self.strip // self.vector
        lane, side = chunk.thread % lanes, chunk.thread // lanes
        tall = self.threads // lanes
        row = chunk.block * self.strip + lane * self.vector
        there = row < chunk.rows
        blocks = cute.ceil_div(chunk.end - chunk.begin, tall * UNROLL)
        most = cute.make_rmem_tensor((self.vector,), Int32)
        for e in range(self.vector):
            most[e] = Int32(0)

        def load(number: Any) -> tuple[list[Any], list[Any], list[Any]]:
            steps = [chunk.begin + (number * UNROLL + i) * tall + side for i in range(UNROLL)]
            inside = [m.both(there, step < chunk.end) for step in steps]
            return self._load(x, row, chunk.batch, steps, inside), steps, inside

        def look(number: Any) -> None:
            for held in load(number)[0]:
                for e in range(self.vector):
                    most[e] = cutlass.max(most[e], finite(magnitude(held[e])))

        loop(Int32(0), blocks, look)
        # Lanes that hold the same rows lie `lanes` apart in a warp; then there is one cell a warp and row.
        warps = self.threads // 32
        board = SmemAllocator().allocate_tensor(Int32, cute.make_layout((self.strip, warps)))
        for e in range(self.vector):
            board[(lane * self.vector + e, chunk.thread // 32)] = self._highest(most[e], 32, lanes)
        cute.arch.sync_threads()
        exponents = []
        for e in range(self.vector):
            bits = Int32(0)
            for warp in range(warps):
                bits = cutlass.max(bits, board[(lane * self.vector + e, warp)])
            exponents.append(exponent_of(bits))
        for e, exponent in enumerate(exponents):
            first = m.both(side == 0, row + e < chunk.rows)
            when(first, lambda e=e, exponent=exponent: chunk.note(row + e, exponent))

        def write(number: Any) -> None:
            for held, step, inside in zip(*load(number), strict=True):
                self._write(planes, (row, step, chunk.batch), held, exponents, inside)

        loop(Int32(0), blocks, write)
