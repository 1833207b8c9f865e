"""The gradient of a convolution's weight on tensor cores (sm_90a): sums over a split's pixels, in fp32.

    first warps          gather both operands into stages of shared memory: a thread has one pixel of the stage and
                         every so many GROUPs of rows, then of columns; it reads GROUP channels at one tap, which
                         neighbours in a warp read for neighbouring pixels
    last two warpgroups  wgmma on a stage once it is full, 64 rows each (several times); M and N lie contiguous there

A CTA has one tile of rows and columns of one group, and one split; its sums go to a place of their own, and `combine`
adds the splits up in order: the result is the same at each run. fp16x3 adds hi*lo, lo*hi and hi*hi up in the tensor
cores over a stage, and that to an fp32 sum in registers.

An fp32 number is scaled by the power of two that puts the largest of its channel into [2^14, 2^15), and the sum is
scaled back.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
from cutlass import BFloat16, Boolean, Float16, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ..common import math as m
from ..common.control import loop, when
from ..conv.gather import Gather, read_channels
from ..conv.kernel import arrive, scale_exponent
from ..conv.ptx import planes_of, write_chunk
from ..conv.shape import ATOM, GROUP
from ..conv.sums import Sums
from ..gemm.epilogue.epilogue import power_of_two
from ..gemm.mainloop.two_level import promote
from .shape import DEPTH, WeightShape, chunk_at
from .tiles import CONSUMERS, WeightPoint

_AT_ONCE = 4  # GROUPs that a thread asks for together, of 32 bits; twice of 16
Walk = tuple[int, ...]


def product_of(kind: Any, columns: int) -> Any:
    """A tiled wgmma of 64 rows of each of two warpgroups, of operands whose M and N are contiguous."""
    major = OperandMajorMode.MN
    return hopper_helpers.make_trivial_tiled_mma(kind, kind, major, major, Float32, (2, 1, 1), tiler_mn=(64, columns))


class WeightKernel:
    """A WeightShape at a WeightPoint for operands of one type, ready to be traced. `walks`: of the windowed operand and
    of the dense one the strides along (sample, group, channel, three spatial dimensions)."""

    def __init__(self, shape: WeightShape, point: WeightPoint, *, dtype: str, walks: tuple[Walk, Walk]) -> None:
        self.shape, self.point = shape, point
        self.scaled, self.item = dtype == "f32", 4 if dtype == "f32" else 2
        self.kind = BFloat16 if dtype == "bf16" else Float16
        self.sides = (Gather(shape.windowed, walks[0], self.item), Gather(shape.dense, walks[1], self.item))
        self.sums = Sums(columns=point.columns)

    def launch(self, tensors: tuple[Any, ...], splits: Any, steps: Any, stream: Any) -> None:
        """Emit the launch. `tensors`: both operands, the largest magnitudes of their channels, and what takes the sums,
        (split, group, column, row) with whole tiles. `steps`: of a split."""
        p, tile = self.point, (self.point.rows, self.point.columns, DEPTH)
        slots = p.stages * p.planes
        layouts = [
            hopper_helpers.make_smem_layout_a(LayoutEnum.COL_MAJOR, tile, self.kind, slots),
            hopper_helpers.make_smem_layout_b(LayoutEnum.COL_MAJOR, tile, self.kind, slots),
        ]
        kernel = self._kernel(list(tensors), product_of(self.kind, p.columns), layouts, steps)
        tiles = p.tiles[0] * p.tiles[1] * self.shape.windowed.groups
        kernel.launch(grid=[tiles, splits, 1], block=[p.threads, 1, 1], min_blocks_per_mp=1, stream=stream)

    @cute.kernel
    def _kernel(self, given: list, mma: cute.TiledMma, layouts: list, each: Int32) -> None:
        p = self.point
        x, g, highest, results = given
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        tile, split, _ = cute.arch.block_idx()
        across = tile // p.tiles[0]
        place = (tile % p.tiles[0], across % p.tiles[1], across // p.tiles[1])
        begin = split * each
        count = cutlass.min(each, Int32(self.shape.steps) - begin)
        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 * p.stages)
        factors = shared.allocate_tensor(Float32, cute.make_layout((p.rows + p.columns, 2)), byte_alignment=16)
        s_a, s_b = [
            shared.allocate_tensor(self.kind, layout.outer, byte_alignment=1024, swizzle=layout.inner)
            for layout in layouts
        ]
        when(thread == 0, partial(self._make_barriers, barriers))
        if cutlass.const_expr(self.scaled):
            self._find_factors(factors, highest, place, thread)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if warp < p.producers // 32:
            cute.arch.setmaxregister_decrease(p.registers[0])
            stages = Int32(s_a.iterator.toint()), Int32(s_b.iterator.toint())
            for step in cutlass.range(count, unroll=1):
                self._fill((x, g), (stages, factors, barriers), place, thread, (step, begin))
        else:
            cute.arch.setmaxregister_increase(p.registers[1])
            group = warp // 4 - p.producers // 128
            own = mma.get_slice(cute.make_layout(2, stride=128)(group))
            fragments = mma.make_fragment_A(own.partition_A(s_a)), mma.make_fragment_B(own.partition_B(s_b))
            sums = [self.sums.make() for _ in range(p.parts)]
            waves = self.sums.make()
            for part in cutlass.range_constexpr(p.parts):
                self.sums.clear(sums[part])
            for step in cutlass.range(count, unroll=1):
                self._multiply(partial(self._chain, mma, fragments), barriers, sums, waves, step)
            if cutlass.const_expr(p.planes == 1):
                warpgroup.wait_group(0)
            self._finish(sums, factors, results, place, (split, group))

    # ---- barriers

    def _make_barriers(self, barriers: Any) -> None:
        p = self.point
        for stage in range(p.stages):
            cute.arch.mbarrier_init(barriers + stage, p.producers // 32)
            cute.arch.mbarrier_init(barriers + p.stages + stage, CONSUMERS // 32)

    def _stage(self, step: Any) -> tuple[Any, Any]:
        return step % self.point.stages, step // self.point.stages % 2

    def _free(self, barriers: Any, step: Any) -> None:
        arrive(barriers + (self.point.stages + self._stage(step)[0]))

    # ---- what is multiplied

    def _find_factors(self, factors: Any, highest: Any, place: tuple[Any, Any, Any], thread: Any) -> None:
        """Of each row and column of the tile its scale, and the scale's inverse."""
        p, s = self.point, self.shape.windowed
        tile, across, group = place

        def find(i: Any) -> None:
            number = i * p.threads + thread
            row, tap = self.shape.row(tile * p.rows + number)
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

    def _fill(
        self, tensors: tuple[Any, Any], shared: tuple[Any, Any, Any], place: tuple[Any, Any, Any], thread: Any,
        turn: tuple[Any, Any],
    ) -> None:  # fmt: skip
        """A stage of both operands, by all threads that gather."""
        p, (stages, factors, barriers), (step, begin) = self.point, shared, turn
        stage, phase = self._stage(step)
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
            each, at_once = groups // parts, _AT_ONCE * (4 // self.item)
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

    # ---- products and what comes out

    def _chain(
        self, mma: Any, fragments: tuple[Any, Any], total: Any, at: tuple[int, Any], *, onto: bool
    ) -> None:  # fmt: skip
        """The wgmma of a part of the rows and a stage, the small products first."""
        p, (r_a, r_b), (part, stage) = self.point, fragments, at
        slot = stage * p.planes
        atom = cute.make_mma_atom(mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, onto)
        for plane_a, plane_b in ((0, 0),) if p.planes == 1 else ((1, 0), (0, 1), (0, 0)):
            for block in range(DEPTH // ATOM):
                cute.mma_atom_call(
                    atom, total[(None, 0, 0)], r_a[(None, part, block, slot + plane_a)],
                    r_b[(None, 0, block, slot + plane_b)], total[(None, 0, 0)],
                )  # fmt: skip
                atom.set(warpgroup.Field.ACCUMULATE, True)

    def _multiply(self, chain: Any, barriers: Any, sums: list[Any], waves: list[Any], step: Any) -> None:
        """A step, for all parts."""
        stage, phase = self._stage(step)
        cute.arch.mbarrier_wait(barriers + stage, phase)
        if self.point.planes == 1:
            warpgroup.fence()
            for part, (total,) in enumerate(sums):
                chain(total, (part, stage), onto=True)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            when(Int32(step) > 0, partial(self._free, barriers, step - 1))
            return
        (wave,) = waves
        for part, (total,) in enumerate(sums):
            warpgroup.fence()
            chain(wave, (part, stage), onto=False)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            promote(total, wave)
        self._free(barriers, step)

    def _finish(
        self, sums: list[Any], factors: Any, results: Any, place: tuple[Any, Any, Any], turn: tuple[Any, Any]
    ) -> None:  # fmt: skip
        """The sums of this thread to the split's place, scaled back."""
        p, (split, group) = self.point, turn
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx() % 4
        rows, columns = (own * tiles for own, tiles in zip((p.rows, p.columns), p.tiles, strict=True))
        matrix = Int64(split * self.shape.windowed.groups + place[2]) * (rows * columns)
        for part, totals in enumerate(sums):
            for r in range(2):
                row = part * 128 + group * 64 + warp * 16 + lane // 4 + 8 * r
                for number in range(p.columns // 4):
                    column = number // 2 * 8 + lane % 4 * 2 + number % 2
                    value = self.sums.one(totals, r, 0, number)
                    if self.scaled:
                        value = value * factors[row, 1] * factors[p.rows + column, 1]
                    line = matrix + Int64(place[1] * p.columns + column) * rows + place[0] * p.rows + row
                    cute.make_tensor(results.iterator + line, cute.make_layout((1,)))[0] = value


THREADS = 256
_AHEAD = 8  # splits that a thread asks for together


class Combine:
    """Adds the splits up, in their order, and writes the weight's gradient, (groups, A, B, taps), in its own type."""

    def __init__(self, shape: WeightShape, point: WeightPoint) -> None:
        self.shape, self.point = shape, point

    def launch(self, results: Any, out: Any, splits: Any, stream: Any) -> None:
        s = self.shape.windowed
        self.rows = self.shape.row_groups * GROUP
        self.count = s.groups * s.columns * self.rows
        kernel = self._kernel(results, out, splits)
        kernel.launch(grid=[-(-self.count // THREADS), 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def _kernel(self, results: cute.Tensor, out: cute.Tensor, splits: Int32) -> None:
        number = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
        when(number < self.count, partial(self._one, results, out, splits, number))

    def _one(self, results: Any, out: Any, splits: Any, number: Any) -> None:
        s, p = self.shape.windowed, self.point
        whole, row = number // self.rows, number % self.rows
        channel, tap = self.shape.row(row)
        rows, columns = p.rows * p.tiles[0], p.columns * p.tiles[1]
        first = (Int64(whole // s.columns) * columns + whole % s.columns) * rows + row
        apart = s.groups * columns * rows
        total = cute.make_rmem_tensor((1,), Float32)
        total[0] = Float32(0.0)

        def some(i: Any) -> None:
            found = []
            for j in range(_AHEAD):
                split = i * _AHEAD + j
                own = cutlass.min(split, splits - 1)
                value = cute.make_tensor(results.iterator + (first + Int64(own) * apart), cute.make_layout((1,)))[0]
                found.append(m.select(Boolean(split < splits), value, Float32(0.0)))
            for value in found:
                total[0] = total[0] + value

        def put() -> None:
            place = (Int64(whole) * s.channels + channel) * s.all_taps + tap
            there = cute.make_tensor(out.iterator + place, cute.make_layout((1,)))
            there[0] = total[0].to(out.element_type)

        loop(Int32(0), (splits + (_AHEAD - 1)) // _AHEAD, some)
        when(channel < s.channels, put)
