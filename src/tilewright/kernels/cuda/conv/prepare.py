"""What comes before the product, in one launch: weights packed as the tiles of shared memory have them, and of fp32 the
largest magnitude of each sample of x.

    packed      (group, tile of columns, step, plane, ..) of 16 bits, and inside, where windows are gathered, (column,
                64), chunk q of row r at q ^ (r % 8), else (ATOM, half, column, 8)
    factors     (groups x columns): 1 / the power of two that a channel's weights were scaled by
    highest     (batch): bits of the largest finite |x|; zero before the launch

The first CTAs have a row of weights each, the others a part of a sample. Nothing is kept between calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import cutlass
from cutlass import BFloat16, Boolean, Float16, Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from ..common import math as m
from ..common.control import loop, when
from ..gemm.epilogue.epilogue import power_of_two
from ..gemm.fp32.pair import INFINITE, TINY, finite, highest, magnitude
from .kernel import scale_exponent
from .ptx import highest_of_all
from .shape import ATOM, DEPTH, GROUP, ConvShape
from .tiles import ConvPoint, channel_of
from .windows import Windows

THREADS = 256
QUAD = 4
PART = THREADS * QUAD * 16  # elements of a sample that a CTA looks at, at least
MOST_CTAS = 2112  # that look at x: 16 a multiprocessor of the largest GPUs


class Prepare:
    """`walk`: the strides of w along (group, column, channel, three taps); `samples`: elements of one of x, which are
    contiguous (0: they were looked at already), and from one to the next; `begin`: of w, where tap 0 is;
    `run` as `tiles.channel_of` has it. Of several phases `shape` is the whole convolution's; the `windows` know their
    taps."""

    def __init__(
        self, shape: ConvShape, point: ConvPoint, *, dtype: str, walk: tuple[int, ...], samples: tuple[int, int],
        begin: int = 0, run: int = 2, windows: Windows | None = None,
    ) -> None:  # fmt: skip
        self.shape, self.point, self.walk = shape, point, walk
        self.sample, self.apart = samples
        self.begin, self.run = begin, run
        self.scaled = dtype == "f32"
        self.kind = BFloat16 if dtype == "bf16" else Float16
        self.rows = shape.groups * point.tiles * point.columns
        parts = min(-(-self.sample // PART), max(MOST_CTAS // shape.batch, 1)) if self.scaled else 0
        self.parts = parts
        self.quads = self.sample % QUAD == 0 and self.apart % QUAD == 0
        self.windows = windows
        self.depth = DEPTH if self.windows is None else self.windows.atoms * ATOM  # of K, a step

    def launch(self, tensors: tuple[Any, ...], stream: Any) -> None:
        """Emit the launch. `tensors`: x, w, packed, highest, factors."""
        ctas = self.rows + self.parts * self.shape.batch
        self._kernel(*tensors).launch(grid=[ctas, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def _kernel(
        self, x: cute.Tensor, w: cute.Tensor, packed: cute.Tensor, of_samples: cute.Tensor, factors: cute.Tensor
    ) -> None:
        number = cute.arch.block_idx()[0]
        thread = cute.arch.thread_idx()[0]
        shared = SmemAllocator()
        told = shared.allocate_tensor(Int32, cute.make_layout((THREADS // 32,)), byte_alignment=16)
        if number < self.rows:
            self._row(w, packed, factors, told, number, thread)
        elif cutlass.const_expr(self.parts > 0):
            self._look(x, of_samples, number - self.rows, thread)

    def _look(self, x: Any, of_samples: Any, number: Any, thread: Any) -> None:
        """The largest of a part of a sample."""
        sample, part = number // self.parts, number % self.parts
        first = Int64(sample) * self.apart
        most = cute.make_rmem_tensor((1,), Int32)
        most[0] = Int32(0)
        wide = QUAD if self.quads else 1
        count = self.sample // wide
        held = cute.make_rmem_tensor((wide,), Float32)

        def read(i: Any) -> None:
            place = (i * self.parts + part) * THREADS + thread

            def take() -> None:
                start = x.iterator + (first + Int64(place) * wide)
                there = cute.make_tensor(start.align(4 * wide), cute.make_layout((wide,)))
                cute.autovec_copy(there, held)
                for e in range(wide):
                    most[0] = cutlass.max(most[0], finite(magnitude(held[e])))

            when(place < count, take)

        loop(Int32(0), Int32(-(-count // (self.parts * THREADS))), read)
        bits = highest(most[0], 32)
        address = of_samples.iterator.toint() + Int64(sample) * 4
        when(cute.arch.lane_idx() == 0, lambda: highest_of_all(address, bits))

    def _row(self, w: Any, packed: Any, factors: Any, told: Any, number: Any, thread: Any) -> None:
        """All of K of one column."""
        s, p = self.shape, self.point
        tile, row = number // p.columns, number % p.columns
        group, column = tile // p.tiles, tile % p.tiles * p.columns + channel_of(row, self.run)
        start = Int64(group) * self.walk[0] + Int64(column) * self.walk[1] + self.begin
        turns = -(-p.steps * self.depth // THREADS)
        bits = cute.make_rmem_tensor((1,), Int32)
        bits[0] = Int32(0)
        own = cute.make_rmem_tensor((1,), w.element_type)

        def read(i: Any) -> Any:
            """The weight of a place in K; 0 where there is none."""
            k = i * THREADS + thread
            channel, taps = self._place(k)
            offset = start
            for step, place in zip(self.walk[2:], (channel, *taps), strict=True):
                offset = offset + Int64(place) * step
            own[0] = w.element_type(0.0)
            inside = m.both(column < s.columns, channel < s.channels)

            def take() -> None:
                own[0] = cute.make_tensor(w.iterator + offset, cute.make_layout((1,)))[0]

            when(inside, take)
            return own[0]

        exponent = Int32(0)
        if self.scaled:

            def see(i: Any) -> None:
                bits[0] = cutlass.max(bits[0], finite(magnitude(read(i))))

            loop(Int32(0), Int32(turns), see)
            of_warp = highest(bits[0], 32)
            told[thread // 32] = of_warp
            cute.arch.sync_threads()
            most = told[0]
            for warp in range(1, THREADS // 32):
                most = cutlass.max(most, told[warp])
            exponent = scale_exponent(most)
            when(m.both(thread == 0, column < s.columns),
                 lambda: factors.__setitem__(group * s.columns + column, power_of_two(-exponent)))  # fmt: skip
        loop(Int32(0), Int32(turns), partial(self._put, read, packed, (tile, row), exponent, thread))

    def _put(self, read: Any, packed: Any, at: tuple[Any, Any], exponent: Any, thread: Any, i: Any) -> None:
        p = self.point
        k = i * THREADS + thread
        step, inside = k // self.depth, k % self.depth
        tile, row = at
        plane_size = p.columns * self.depth
        first = Int64((tile * p.steps + step) * p.planes) * plane_size
        if self.windows is None:
            place = row * DEPTH + ((inside // GROUP) ^ (row % 8)) * GROUP
        else:
            place = (inside // GROUP * p.columns + row) * GROUP
        line = first + place + inside % GROUP
        value = read(i)
        if self.windows is not None and self.windows.is_odd:
            half = type(value)(0.5) * value
            value = m.select(self._is_twice(inside // GROUP), half, value)

        def put(plane: int, one: Any) -> None:
            where = packed.iterator + (line + plane * plane_size)
            cute.make_tensor(where, cute.make_layout((1,)))[0] = one.to(self.kind)

        def write() -> None:
            if not self.scaled:
                put(0, value)
                return
            near, left = self._split(value, value * power_of_two(exponent))
            put(0, near)
            if p.planes == 2:
                put(1, left)

        when(k < p.steps * self.depth, write)

    def _place(self, k: Any) -> tuple[Any, Any]:
        """(channel, the tap along each dimension) of a place in K; the channel may lie behind the last."""
        s, w = self.shape, self.windows
        if w is None:
            channel, number = s.place(k)
            return channel, s.tap(number)
        if w.parts:
            step, inside = k // self.depth, k % self.depth
            group = step * w.groups + _looked_up([own.group for own in w.plan.halves], inside // GROUP)
            return group * GROUP + k % GROUP, s.tap(_looked_up([own.tap for own in w.plan.halves], inside // GROUP))
        channel, number = w.place(k)
        order = s.tap(cutlass.min(number, Int32(s.all_taps - 1)))
        taps = tuple(t if e > 0 else n - 1 - t for t, n, e in zip(order, s.taps, s.step, strict=True))
        return channel, taps

    def _is_twice(self, half: Any) -> Any:
        """Whether a half of an ATOM, counted over the stage, has half of its tap's weights."""
        assert self.windows is not None
        if self.windows.parts:
            return _looked_up([int(own.twice) for own in self.windows.plan.halves], half) != 0
        return self.windows.is_twice(half)

    def _split(self, x: Any, y: Any) -> tuple[Any, Any]:
        """hi and lo of a weight; y is x, scaled. hi is never zero but where x is; what is not finite is lo, where there
        is one."""
        bits = magnitude(x)
        near = y.to(Float16).to(Float32)
        lost = m.both(bits != Int32(0), near == Float32(0.0))
        if self.point.planes == 2:
            lost = m.either(lost, bits >= Int32(INFINITE))
        tiny = m.select(x < Float32(0.0), Float32(-TINY), Float32(TINY))
        hi = m.select(Boolean(lost), tiny, near)
        return hi, y - hi


def _looked_up(table: Sequence[int], place: Any) -> Any:
    """What stands at a place of a table of constants."""
    found = Int32(table[0])
    for i in range(1, len(table)):
        if table[i] != table[i - 1]:
            found = found + Int32(place >= i) * (table[i] - table[i - 1])
    return found
