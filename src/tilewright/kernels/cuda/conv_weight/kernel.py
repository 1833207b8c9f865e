"""The gradient of a convolution's weight on tensor cores (sm_90a): sums over a split's pixels, in fp32.

    first warps          gather both operands into stages of shared memory: `filling`
    last two warpgroups  wgmma on a stage once it is full, 64 rows each (several times); M and N lie contiguous there

A CTA has one tile of rows and columns of one group, and one split; its sums go to a place of their own, and
`split_sums` adds the splits up in order: the result is the same at each run. fp16x3 adds hi*lo, lo*hi and hi*hi up in
the tensor cores over a stage, and that to an fp32 sum in registers.

An fp32 number is scaled by the power of two that puts the largest of its channel into [2^14, 2^15), and the sum is
scaled back.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
from cutlass import BFloat16, Float16, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ..common.control import when
from ..conv.kernel import arrive
from ..conv.shape import ATOM
from ..conv.sums import Sums
from ..gemm.mainloop.two_level import promote
from .filling import StageFilling, Walk
from .shape import DEPTH, WeightShape
from .tiles import CONSUMERS, WeightPoint


def product_of(kind: Any, columns: int) -> Any:
    """A tiled wgmma of 64 rows of each of two warpgroups, of operands whose M and N are contiguous."""
    major = OperandMajorMode.MN
    return hopper_helpers.make_trivial_tiled_mma(kind, kind, major, major, Float32, (2, 1, 1), tiler_mn=(64, columns))


class WeightKernel:
    """A WeightShape at a WeightPoint for operands of one type, ready to be traced. `walks`: as a StageFilling's."""

    def __init__(self, shape: WeightShape, point: WeightPoint, *, dtype: str, walks: tuple[Walk, Walk]) -> None:
        self.shape, self.point = shape, point
        self.scaled, self.item = dtype == "f32", 4 if dtype == "f32" else 2
        self.kind = BFloat16 if dtype == "bf16" else Float16
        self.filling = StageFilling(shape, point, item=self.item, walks=walks)
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
            self.filling.find_factors(factors, highest, place, thread)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if warp < p.producers // 32:
            cute.arch.setmaxregister_decrease(p.registers[0])
            stages = Int32(s_a.iterator.toint()), Int32(s_b.iterator.toint())
            for step in cutlass.range(count, unroll=1):
                self.filling.fill((x, g), (stages, factors, barriers), place, thread, (step, begin))
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

    def _free(self, barriers: Any, step: Any) -> None:
        arrive(barriers + (self.point.stages + self.point.stage(step)[0]))

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
        stage, phase = self.point.stage(step)
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
