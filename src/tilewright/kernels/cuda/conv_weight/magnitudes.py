"""The largest finite magnitude of each channel of an fp32 tensor, as the bits of the number.

A CTA looks at a part of one channel's elements over all samples, neighbours in a warp being neighbours along the last
dimension, and joins what it found to what others found: the largest, whatever the order.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from ..common.control import loop, when
from ..conv.gather import Gather
from ..conv.ptx import highest_of_all
from ..gemm.fp32.pair import finite, highest, magnitude
from .shape import Patches

THREADS = 256
_AT_ONCE = 8  # elements that a thread asks for together
_MOST_PARTS = 64  # of a channel


class Magnitudes:
    """Of a tensor (N, G, channels, places), whose places are `shape.out`, into `found` from number `first` on. `walk`:
    its strides along (sample, group, channel, three spatial dimensions)."""

    def __init__(self, shape: Patches, walk: tuple[int, ...], *, first: int) -> None:
        self.shape, self.first = shape, first
        self.gather = Gather(shape, walk, 4)
        self.parts = min(max(shape.pixels // (THREADS * _AT_ONCE * 4), 1), _MOST_PARTS)

    def launch(self, x: Any, found: Any, stream: Any) -> None:
        s = self.shape
        kernel = self._kernel(x, found)
        kernel.launch(grid=[s.groups * s.channels * self.parts, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def _kernel(self, x: cute.Tensor, found: cute.Tensor) -> None:
        number = cute.arch.block_idx()[0]
        self._look(x, found, number // self.parts, number % self.parts)

    def _look(self, x: Any, found: Any, channel: Any, part: Any) -> None:
        s, g = self.shape, self.gather
        most = cute.make_rmem_tensor((1,), Int32)
        most[0] = Int32(0)
        thread = cute.arch.thread_idx()[0]

        def some(i: Any) -> None:
            values = []
            for j in range(_AT_ONCE):
                place = ((i * self.parts + part) * _AT_ONCE + j) * THREADS + thread
                at = g.pixel(place)  # of one behind the last that one
                offset = g.element(at, channel // s.channels, channel % s.channels)
                values.append(cute.make_tensor(x.iterator + offset, cute.make_layout((1,)))[0])
            for value in values:
                most[0] = cutlass.max(most[0], finite(magnitude(value)))

        loop(Int32(0), Int32(-(-s.pixels // (THREADS * _AT_ONCE * self.parts))), some)
        bits = highest(most[0], 32)
        address = found.iterator.toint() + (Int64(channel) + self.first) * 4
        when(cute.arch.lane_idx() == 0, partial(highest_of_all, address, bits))
