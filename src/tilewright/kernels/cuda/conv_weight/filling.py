"""How a stage of a weight's gradient is filled: both operands in one way, by all threads that gather.

A thread has one pixel of the stage and every so many GROUPs of rows, then of columns. Of a GROUP, neighbouring channels
at one tap, neighbours in a warp read what lies beside one another; it is scaled, rounded or split, and written as one
chunk of each plane.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from ..common import math as m
from ..common.control import when
from ..conv.gather import Gather, read_channels
from ..conv.kernel import arrive, scale_exponent
from ..conv.ptx import planes_of, write_chunk
from ..conv.shape import GROUP
from ..gemm.epilogue.epilogue import power_of_two
from .shape import DEPTH, WeightShape, chunk_at
from .tiles import WeightPoint

AT_ONCE = 4  # GROUPs that a thread asks for together, of 32 bits; twice of 16
Walk = tuple[int, ...]


class StageFilling:
    """`walks`: of the windowed operand and of the dense one the strides along (sample, group, channel, three spatial
    dimensions); elements have `item` bytes, and those of 4 are scaled."""

    def __init__(self, shape: WeightShape, point: WeightPoint, *, item: int, walks: tuple[Walk, Walk]) -> None:
        self.shape, self.point, self.item, self.scaled = shape, point, item, item == 4
        self.sides = (Gather(shape.windowed, walks[0], item), Gather(shape.dense, walks[1], item))

    def find_factors(self, factors: Any, highest: Any, place: tuple[Any, Any, Any], thread: Any) -> None:
        """Of each row and column of the tile its scale, and the scale's inverse."""
        p, s = self.point, self.shape.windowed
        tile, across, group = place

        def find(i: Any) -> None:
            number = i * p.threads + thread
            row, _ = self.shape.row(tile * p.rows + number)
            column = across * p.columns + number - p.rows
            channel = m.select(number < p.rows, group * s.channels + cutlass.min(row, Int32(s.channels - 1)),
                               s.groups * s.channels + group * s.columns
                               + cutlass.max(cutlass.min(column, Int32(s.columns - 1)), Int32(0)))  # fmt: skip

            def put() -> None:
                exponent = scale_exponent(highest[channel])
                factors[number, 0] = power_of_two(exponent)
                factors[number, 1] = power_of_two(-exponent)

            when(number < p.rows + p.columns, put)

        for i in range(-(-(p.rows + p.columns) // p.threads)):
            find(i)

    def fill(
        self, tensors: tuple[Any, Any], shared: tuple[Any, Any, Any], place: tuple[Any, Any, Any], thread: Any,
        turn: tuple[Any, Any],
    ) -> None:  # fmt: skip
        """A stage of both operands, by all threads that gather."""
        p, (stages, factors, barriers), (step, begin) = self.point, shared, turn
        stage, phase = p.stage(step)
        own, part, parts = thread % DEPTH, thread // DEPTH, p.producers // DEPTH
        number = (begin + step) * DEPTH + own
        inside = Int32(number < self.shape.windowed.pixels)
        cute.arch.mbarrier_wait(barriers + (p.stages + stage), phase ^ 1)
        sizes = (p.rows, p.columns)
        for side, (tensor, gather) in enumerate(zip(tensors, self.sides, strict=True)):
            at = gather.pixel(number)
            pixel = (gather.origin(tensor, at, place[2]), gather.bits(at), inside)
            plane_bytes = sizes[side] * DEPTH * 2
            start = stages[side] + stage * (p.planes * plane_bytes)
            groups = sizes[side] // GROUP
            first = place[side] * groups
            each, at_once = groups // parts, AT_ONCE * (4 // self.item)
            for some in range(0, each, at_once):
                mine = [(some + i) * parts + part for i in range(min(at_once, each - some))]
                asked = [self._read(gather, first + q, pixel, tiled=groups) for q in mine]
                for q, values in zip(mine, asked, strict=True):
                    scales = None
                    if self.scaled:
                        row = q * GROUP + (0 if side == 0 else p.rows)
                        scales = [factors[row + j, 0] for j in range(GROUP)]
                    self._write(start + chunk_at(own, q), values, scales, plane_bytes)
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        arrive(barriers + stage)

    def _read(self, gather: Gather, group: Any, pixel: tuple[Any, Any, Any], *, tiled: int) -> list[Any]:
        """A GROUP of neighbouring channels at one tap; 0 behind the last channel, and behind the last pixel. `tiled`:
        GROUPs of a tile."""
        s, (origin, bits, inside) = gather.shape, pixel
        group = Int32(group)
        block, number = group // s.all_taps, group % s.all_taps
        tap = s.tap(number)
        test = gather.test(bits, tap)
        if s.pixels % DEPTH:
            test = inside if test is None else test & inside
        odd = s.channels % GROUP > 0 or -(-s.channels // GROUP) * s.all_taps % tiled > 0
        left = s.channels - block * GROUP if odd else None
        address = origin + Int64(gather.offset(block * GROUP, tap)) * self.item
        return read_channels(self.item, address, gather.walk[2], left, test, wide=gather.wide)

    def _write(self, address: Any, values: list[Any], scales: list[Any] | None, plane_bytes: int) -> None:
        """A chunk of each plane."""
        one = None
        if scales is not None:
            values = [value * scale for value, scale in zip(values, scales, strict=True)]
            one = Float32(1.0)
        for plane, words in enumerate(planes_of(values, one, self.point.planes)):
            write_chunk(address + plane * plane_bytes, words)
