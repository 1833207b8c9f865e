"""An fp32 factor as two fp16 planes, hi and lo, of numbers that a power of two has scaled: of each layer (what one
index of the factor's batch tells) the one that brings its largest into [2^14, 2^15).

    highest   (layers): bits of the largest finite magnitude; zero before the launch
    planes    (2, rows .., columns), contiguous in the factor's order of dimensions

Two launches, since a layer's numbers are scaled once its largest is known. A thread has 8 neighbours of a row.
"""

from __future__ import annotations

from math import prod
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from ..common.control import loop, when
from ..conv.kernel import scale_exponent
from ..conv.ptx import highest_of_all, planes_of
from ..gemm.epilogue.epilogue import power_of_two
from ..gemm.fp32.pair import finite, highest, magnitude
from .planes import write_line
from .shape import Layers

THREADS = 256
EACH = 8  # neighbours of a thread
_MOST_CTAS = 2112  # 16 a multiprocessor of the largest GPUs


class PreparePlanes:
    """Of a factor of this `shape` and these `strides`, columns last, which lie side by side."""

    def __init__(self, layers: Layers, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.shape, self.columns = shape, shape[-1]
        own = [i for i in range(len(shape) - 1) if i != layers.at]  # dimensions that tell the layer
        self.batch = [(shape[i], strides[i], prod(shape[i + 1 :])) for i in own]
        at = layers.at
        self.row = (1, 0, 0) if at is None else (shape[at], strides[at], prod(shape[at + 1 :]))
        self.layers = prod(n for n, _, _ in self.batch)
        self.groups = self.row[0] * (self.columns // EACH)  # of a layer
        self.parts = min(-(-self.groups // THREADS), max(_MOST_CTAS // self.layers, 1))
        self.plane = prod(shape)

    def launch(self, x: Any, planes: Any, of_layers: Any, stream: Any) -> None:
        """Emit both launches."""
        grid, block = [self.parts * self.layers, 1, 1], [THREADS, 1, 1]
        self._look(x, of_layers).launch(grid=grid, block=block, stream=stream)
        self._split(x, planes, of_layers).launch(grid=grid, block=block, stream=stream)

    @cute.kernel
    def _look(self, x: cute.Tensor, of_layers: cute.Tensor) -> None:
        self._largest(x, of_layers)

    @cute.kernel
    def _split(self, x: cute.Tensor, planes: cute.Tensor, of_layers: cute.Tensor) -> None:
        self._parted(x, planes, of_layers)

    def _own(self) -> tuple[Any, Any]:
        """The layer of a CTA, and its part of that."""
        number = cute.arch.block_idx()[0]
        return number // self.parts, number % self.parts

    def _largest(self, x: Any, of_layers: Any) -> None:
        layer, part = self._own()
        most = cute.make_rmem_tensor((1,), Int32)
        most[0] = Int32(0)

        def take(held: Any, _place: Any) -> None:
            for e in range(EACH):
                most[0] = cutlass.max(most[0], finite(magnitude(held[e])))

        self._each(x, layer, part, take)
        bits = highest(most[0], 32)
        address = of_layers.iterator.toint() + Int64(layer) * 4
        when(cute.arch.lane_idx() == 0, lambda: highest_of_all(address, bits))

    def _parted(self, x: Any, planes: Any, of_layers: Any) -> None:
        layer, part = self._own()
        scale = power_of_two(scale_exponent(of_layers[layer]))
        to = planes.iterator.toint()

        def take(held: Any, place: Any) -> None:
            for number, words in enumerate(planes_of([held[e] for e in range(EACH)], scale, 2)):
                write_line(to + (place + number * self.plane) * 2, words)

        self._each(x, layer, part, take)

    def _each(self, x: Any, layer: Any, part: Any, take: Any) -> None:
        """take(numbers, their place in a plane) for the groups of a layer that a thread has."""
        start, base = Int64(0), Int64(0)
        left = layer
        for size, stride, dense in reversed(self.batch):
            index = Int64(left % size)
            start, base, left = start + index * stride, base + index * dense, left // size
        held = cute.make_rmem_tensor((EACH,), Float32)
        across = self.columns // EACH
        thread = cute.arch.thread_idx()[0]

        def some(i: Any) -> None:
            number = (i * self.parts + part) * THREADS + thread
            row, column = Int64(number // across), Int64(number % across * EACH)

            def one() -> None:
                spot = x.iterator + (start + row * self.row[1] + column)
                cute.autovec_copy(cute.make_tensor(spot.align(16), cute.make_layout((EACH,))), held)
                take(held, base + row * self.row[2] + column)

            when(number < self.groups, one)

        loop(Int32(0), Int32(-(-self.groups // (self.parts * THREADS))), some)
