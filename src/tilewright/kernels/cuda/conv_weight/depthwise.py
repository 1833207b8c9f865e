"""The gradient of a depthwise convolution's weight: sums over all pixels of each channel, of every tap at once.

    dw[c, t] = sum over (n, o) of dense[n, c, o] * windowed[n, c, o stride + start + t step]

    thread      goes over pixels, neighbours in a warp being neighbours along the last dimension: reads the dense
                element once and the window's from the L1, where neighbours share it; has a sum of each tap in registers
    CTA         a part of a channel's pixels; its sums are joined by shuffles, then in shared memory, in one order
    TapSums     adds the parts up in their order

So each element comes from memory about once, whatever the window; all is fp32, and nothing is scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import cutlass.cute.math as _lib
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from ..common.control import loop, when
from ..conv.gather import Gather
from .shape import WeightShape
from .split_sums import added_up

THREADS = 256
MOST_TAPS = 64  # sums of a thread
LEAST_PIXELS = THREADS * 4  # of a part
MOST_PARTS = 64
EACH = 16  # CTAs a multiprocessor, of which it runs a few at a time
_WARPS = THREADS // 32
_AT_ONCE = 8  # elements that are asked for together
_WIDENED = {"f32": "mov.f32 {{$w{j}}}, v{j};", "f16": "cvt.f32.f16 {{$w{j}}}, v{j};",
            "bf16": "mov.b32 {{$w{j}}}, {{z, v{j}}};"}  # fmt: skip


def parts_of(shape: WeightShape, processors: int) -> int:
    """Of a channel: so many that multiprocessors are full, none of few pixels."""
    wanted = -(-EACH * processors // shape.windowed.groups)
    return max(min(wanted, MOST_PARTS, shape.windowed.pixels // LEAST_PIXELS), 1)


def read_widened(dtype: str, address: Any, offsets: Sequence[int], tests: Sequence[Any]) -> list[Any]:
    """Elements at constant `offsets`, in bytes, behind an address, as fp32 numbers; 0 where the element's test (Int32;
    None: it has none) is 0."""
    args = [address, *dict.fromkeys(t for t in tests if t is not None)]
    numbers = {t: i for i, t in enumerate(args)}
    kind, load, zero = ("f32", "f32", "0f00000000") if dtype == "f32" else ("b16", "b16", "0")
    lines = [f".reg .{kind} v<{len(offsets)}>; .reg .b16 z; .reg .pred p<{len(args)}>; mov.b16 z, 0;"]
    lines += [f"setp.ne.s32 p{i}, {{$r{i}}}, 0;" for i in range(1, len(args))]
    for j, (offset, test) in enumerate(zip(offsets, tests, strict=True)):
        guard = "" if test is None else f"@p{numbers[test]} "
        lines.append(f"mov.{kind} v{j}, {zero}; {guard}ld.global.nc.{load} v{j}, [{{$r0}}+{offset}];")
    lines += [_WIDENED[dtype].format(j=j) for j in range(len(offsets))]
    text = "{ " + " ".join(lines) + " }"
    made = cute.arch.inline_ptx(text, write_only_types=[Float32] * len(offsets), read_only_args=args)
    return list(made) if len(offsets) > 1 else [made]


class TapKernel:
    """A WeightShape of as many groups as channels, for operands of one type. `walks`: of the windowed operand and of
    the dense one the strides along (sample, channel, nothing, three spatial dimensions)."""

    def __init__(self, shape: WeightShape, *, dtype: str, walks: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        self.shape, self.dtype = shape, dtype
        self.item = 4 if dtype == "f32" else 2
        self.windowed, self.dense = (
            Gather(shape.windowed, walks[0], self.item),
            Gather(shape.dense, walks[1], self.item),
        )

    def launch(self, tensors: tuple[Any, Any, Any], parts: Any, stream: Any) -> None:
        """Emit the launch. `tensors`: both operands, and what takes the sums, (part, channel, tap)."""
        kernel = self._kernel(*tensors, parts)
        kernel.launch(grid=[self.shape.windowed.groups, parts, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def _kernel(self, x: cute.Tensor, g: cute.Tensor, results: cute.Tensor, parts: Int32) -> None:
        channel, part, _ = cute.arch.block_idx()
        thread = cute.arch.thread_idx()[0]
        taps = self.shape.windowed.all_taps
        shared = SmemAllocator()
        told = shared.allocate_tensor(Float32, cute.make_layout((_WARPS * taps,)), byte_alignment=16)
        sums = cute.make_rmem_tensor((taps,), Float32)
        sums.fill(0.0)
        turns = (Int32(self.shape.windowed.pixels) + (parts * THREADS - 1)) // (parts * THREADS)
        loop(Int32(0), turns, partial(self._pixel, (x, g), channel, sums, (part, parts, thread)))
        self._join(sums, told, thread)
        cute.arch.sync_threads()
        where = (Int64(part) * self.shape.windowed.groups + channel) * taps
        when(thread < taps, partial(self._write, told, results, where, thread))

    def _pixel(
        self, tensors: tuple[Any, Any], channel: Any, sums: Any, own: tuple[Any, Any, Any], turn: Any
    ) -> None:  # fmt: skip
        """A pixel's products, of all taps."""
        (x, g), (part, parts, thread), s = tensors, own, self.shape.windowed
        number = (turn * parts + part) * THREADS + thread
        at = self.windowed.pixel(number)
        there = Int32(number < s.pixels)
        (upstream,) = read_widened(self.dtype, self.dense.origin(g, at, channel), [0], [there])
        origin, bits = self.windowed.origin(x, at, channel), self.windowed.bits(at)
        taps = [s.tap(t) for t in range(s.all_taps)]
        for first in range(0, len(taps), _AT_ONCE):
            some = taps[first : first + _AT_ONCE]
            offsets = [self.windowed.offset(0, tap) * self.item for tap in some]
            values = read_widened(self.dtype, origin, offsets, [self.windowed.test(bits, tap) for tap in some])
            for j, value in enumerate(values):
                sums[first + j] = _lib.fma(value, upstream, sums[first + j])

    def _join(self, sums: Any, told: Any, thread: Any) -> None:
        """Of each tap the warp's sum to shared memory."""
        for t in range(self.shape.windowed.all_taps):
            value = sums[t]
            for offset in (16, 8, 4, 2, 1):
                value = value + cute.arch.shuffle_sync_bfly(value, offset=offset)
            place = thread // 32 * self.shape.windowed.all_taps + t
            when(cute.arch.lane_idx() == 0, partial(told.__setitem__, place, value))

    def _write(self, told: Any, results: Any, where: Any, tap: Any) -> None:
        taps = self.shape.windowed.all_taps
        total = told[tap]
        for warp in range(1, _WARPS):
            total = total + told[warp * taps + tap]
        cute.make_tensor(results.iterator + (where + tap), cute.make_layout((1,)))[0] = total


class TapSums:
    """Writes the gradient, (channels, taps), in its own type, from the parts' sums."""

    def __init__(self, shape: WeightShape) -> None:
        self.count = shape.windowed.groups * shape.windowed.all_taps

    def launch(self, results: Any, out: Any, parts: Any, stream: Any) -> None:
        kernel = self._kernel(results, out, parts)
        kernel.launch(grid=[-(-self.count // THREADS), 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def _kernel(self, results: cute.Tensor, out: cute.Tensor, parts: Int32) -> None:
        number = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
        when(number < self.count, partial(self._one, results, out, parts, number))

    def _one(self, results: Any, out: Any, parts: Any, number: Any) -> None:
        total = added_up(results, number, self.count, parts)
        there = cute.make_tensor(out.iterator + number, cute.make_layout((1,)))
        there[0] = total.to(out.element_type)
