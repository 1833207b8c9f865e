"""The product itself: TMA loads, wgmma, two-level sums, persistent clusters (sm_90a).

    A is (M, K, batch x planes), B is (N, K, batch x planes), either mode contiguous, either with one matrix for the
    whole batch; C is (M, N, batch x splits)

    dual: a second B, as large and lying as the first; each is half of a stage, and both sums of an element of C are
    the same thread's

        columns of wgmma    0 .. N_t / 2 - 1    N_t / 2 .. N_t - 1
        of                  B                   the second B, the same columns

    work = tile of C x split of K x batch, in bands of BAND cluster tiles along M: neighbours in time share operands

    warp 0 of warpgroup 0   for each step of K: wait for an empty stage; TMA of A's and B's planes into it
    warpgroups 1 ..         for each step: wait for a full stage;
                            for each part (64 x atom_n of C): a chain of wgmma into `wave`, then `sum[part] += wave`
                            plain products: one chain over all of K into `sum`

    Which chains an fp32 product has: `chains_of` in plan.py, small terms first.

In turns (`pingpong`) a warpgroup takes every other tile whole, and skips the stages of those between. It multiplies
when the other is through with its steps (two named barriers pass the turn on): what that one does with its sums then
takes no time from the tensor cores.

The sum of a part is in registers as wgmma lays it out: ((2, 2, atom_n / 8), 1, 1), pairs of neighbouring columns.
Every CTA of a cluster goes through the same number of tiles, also of those that lie outside of C: TMA fills with
zeros what is outside of A and B, and nothing outside is written. Tiles that the result does not depend on (`triu`) come
last, and take no steps. Of a factor with zeros but for some diagonals (`zeros`) steps are left out (see `k_range`).
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import warpgroup
from cutlass.pipeline import pipeline_init_arrive, pipeline_init_wait
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ...common.math import select
from ..epilogue.epilogue import EpilogueStore
from ..epilogue.expression import TileAt
from ..epilogue.smem_tile import Staging
from ..epilogue.tma_store import copies
from ..host.plan import Point, chains_of
from .k_range import NO_ZEROS, KRange, Zeros
from .operand_loads import OperandLoads
from .tile_order import Band, TileSchedule
from .two_level import Chains

TURN = 3  # named barrier of the first warpgroup's turn; the next one is of the second's. A TmaStore has 1 and 2


class WgmmaProduct(TileSchedule, Chains, OperandLoads):
    """A Point for operands of given types and majors, ready to be traced inside a `@cute.jit` entry point. `zeros`: as
    a KRange has them."""

    starts_early = True  # whether its kernel calls `_start`, so that it may be launched while the one before runs

    def __init__(self, point: Point, finish: EpilogueStore, zeros: Zeros = NO_ZEROS) -> None:
        self.point = point
        self.finish = finish
        self.scales = (3 if point.dual else 2) if point.scales else 0  # tensors of exponents
        self.band = None if finish.diagonals == (None, None) else Band(point, finish.diagonals)
        self.reach = None if zeros == NO_ZEROS else KRange(point, zeros)
        self.chains = chains_of(point)
        # The first wgmma of a tile forget what was, the last hide what finds the next one's place; not where none waits
        # for either, sums are promoted, or a tile may have no wgmma.
        waits_not = point.pingpong or point.two_levels
        self.foresees = not waits_not and self.band is None and self.reach is None
        self.early = self.starts_early and point.scheme == "plain"

    def __call__(self, tensors: tuple[Any, ...], clusters: Any, splits: Any, chunk: Any, stream: Any) -> None:
        """Emit the launch. `tensors`: A, B, C; of split operands the exponents of A's rows and of B's columns, (rows,
        splits) each; the epilogue's operands."""
        p = self.point
        a, b, c, *more = tensors
        other = more.pop(0) if p.dual else b
        major_a, major_b = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
        self.element = a.element_type
        tile = (p.tile_m, p.tile_n, p.depth)
        slots = p.depth_stages * p.planes
        smem_a = hopper_helpers.make_smem_layout_a(major_a, tile, self.element, slots)
        smem_b = hopper_helpers.make_smem_layout_b(major_b, tile, self.element, slots)
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.element, self.element, major_a.sm90_mma_major_mode(), major_b.sm90_mma_major_mode(), Float32,
            (p.groups, 1, 1), tiler_mn=(64, p.atom_n),
        )  # fmt: skip
        tma_a, from_a = self._tma(a, smem_a, (p.tile_m, p.depth), p.cluster_n)
        self.major_b = major_b
        halves = self._halves()
        tma_b, from_b = self._tma(b, halves, (p.columns, p.depth), p.cluster_m)
        tma_g, from_g = self._tma(other, halves, (p.columns, p.depth), p.cluster_m) if p.dual else (tma_b, b)

        width = c.element_type.width
        self.bulk = p.bulk and self.finish.vector * width >= 128 and p.line_bytes * 8 // width % 16 == 0
        (tma_c, to_c), smem_c = copies(c, p) if self.bulk else ((tma_a, c), smem_a)  # or stand-ins
        self.staging = Staging.of(p, self.finish, c, more[self.scales :]) if p.staged else None
        tma_x, from_x = tma_c, to_c
        if self.staging is not None:
            (tma_c, to_c), (tma_x, from_x), smem_c = self.staging.copies(c)

        kernel = self._kernel(
            [tma_a, from_a, tma_b, from_b, tma_g, from_g], c, list(more), mma, [smem_a, smem_b],
            [tma_c, to_c, smem_c, tma_x, from_x], splits, chunk,
        )  # fmt: skip
        self._launch(kernel, clusters, stream)

    @cute.kernel
    def _kernel(
        self, loads: list, c: cute.Tensor, more: list, mma: cute.TiledMma, layouts: list, out: list, splits: Int32,
        chunk: Int32,
    ) -> None:  # fmt: skip
        """`loads`: TMA's copy and the tensor of A, B and the second B; `layouts`: of A's and B's stages; `out`: copy,
        tensor and layout of what leaves by TMA, copy and tensor of what comes staged."""
        p = self.point
        tma_a, from_a, tma_b, from_b, tma_g, from_g = loads
        tma_c, to_c, smem_c, tma_x, from_x = out
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            self._prefetch(tma_a, tma_b, tma_g, tma_c, tma_x)
        at, mask_a, mask_b = self._in_cluster()

        shared, stages, s_a, s_b = self._stage_memory(layouts)
        group = cute.arch.make_warp_uniform(thread // 128)
        self.staged = self._staged(shared, group, smem_c, (tma_c, to_c), (tma_x, from_x))
        pipeline_init_arrive(cluster_shape_mn=(p.cluster_m, p.cluster_n), is_relaxed=True)
        to_a, g_a = self._sides(tma_a, from_a, s_a, (p.tile_m, p.depth), at=at[1], together=p.cluster_n)
        to_b, sources = self._sources(((tma_b, from_b), (tma_g, from_g)), s_b, at[0])

        self.smem_store = self._smem_store(tma_c, to_c, smem_c, shared, group, c.element_type)
        member = 0 if p.pingpong else group - 1
        r_a, r_b, (parts_m, parts_n), fragment = self._fragments(mma, s_a, s_b, member)

        m, n, k = cute.size(from_a, mode=[0]), cute.size(from_b, mode=[0]), cute.size(from_a, mode=[1])
        rows = cute.ceil_div(m, p.tile_m * p.cluster_m)
        columns = cute.ceil_div(n, p.columns * p.cluster_n)
        steps = cute.ceil_div(k, p.depth)
        each = chunk // p.depth
        first_work, stride, all_work = self._rounds(rows * columns * cute.size(c, mode=[2]), steps)

        place = self._steps(self._turn(first_work, stride, all_work), rows, columns, splits, each, steps)

        pipeline_init_wait(cluster_shape_mn=(p.cluster_m, p.cluster_n))
        self._start()

        if group == 0:
            cute.arch.setmaxregister_decrease(p.registers[0])
            if warp == 0:
                filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, p.depth_stages)
                work = first_work
                while work < all_work:
                    row, column, layer, begin, end = place
                    of_a, of_b = (
                        self.finish.layer_of(side, layer // splits, x, planes=p.planes)
                        for side, x in enumerate((from_a, from_b))
                    )
                    for step in cutlass.range(begin, end, unroll=1):
                        stages.producer_acquire(filling)
                        barrier = stages.producer_get_barrier(filling)
                        for plane in cutlass.range_constexpr(p.planes):
                            slot = filling.index * p.planes + plane
                            cute.copy(
                                tma_a, g_a[(None, row * p.cluster_m + at[0], step, of_a + plane)], to_a[(None, slot)],
                                tma_bar_ptr=barrier, mcast_mask=mask_a,
                            )  # fmt: skip
                            for half in cutlass.range_constexpr(len(sources)):
                                cute.copy(
                                    sources[half][0],
                                    sources[half][1][(None, column * p.cluster_n + at[1], step, of_b + plane)],
                                    to_b[(None, slot * len(sources) + half)], tma_bar_ptr=barrier, mcast_mask=mask_b,
                                )  # fmt: skip
                        stages.producer_commit(filling)
                        filling.advance()
                    work += stride
                    place = self._steps(self._turn(work, stride, all_work), rows, columns, splits, each, steps)
                stages.producer_tail(filling)
        else:
            cute.arch.setmaxregister_increase(p.registers[1])
            by_thread = mma.get_slice(thread % 128 if p.pingpong else thread - 128)
            places = by_thread.partition_C(cute.make_identity_tensor((p.tile_m, p.tile_n)))
            reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            freeing = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            sums = [cute.make_rmem_tensor(fragment, Float32) for _ in range(parts_m * parts_n)]
            wave = cute.make_rmem_tensor(fragment, Float32)
            phase = Int32(0)
            work = first_work
            if cutlass.const_expr(p.pingpong):
                work += (group - 1) * stride
                if group == 2:
                    cute.arch.barrier_arrive(barrier_id=TURN, number_of_threads=256)
            while work < all_work:
                if cutlass.const_expr(p.pingpong):
                    before = cutlass.max(work - stride, first_work)
                    turn = self._turn(before, stride, all_work)
                    _, _, _, begin, end = self._steps(turn, rows, columns, splits, each, steps)
                    skipped = select(work > before, end - begin, Int32(0))
                    reading.advance(skipped)
                    freeing.advance(skipped)
                if cutlass.const_expr(not self.foresees):
                    turn = self._turn(work, stride, all_work)
                    place = self._steps(turn, rows, columns, splits, each, steps)
                row, column, layer, begin, end = place
                work += stride * p.turns
                at_m = (row * p.cluster_m + at[0]) * p.tile_m
                at_n = (column * p.cluster_n + at[1]) * p.columns
                corner = (at_m, at_n, layer)
                ahead = self._begin(places, more, corner, (m, n), member)
                if cutlass.const_expr(not self.foresees):
                    for part in cutlass.range_constexpr(parts_m * parts_n):
                        sums[part].fill(0.0)
                if cutlass.const_expr(p.pingpong):
                    cute.arch.barrier(barrier_id=TURN - 1 + group, number_of_threads=256)
                for step in cutlass.range(begin, end, unroll=1):
                    stages.consumer_wait(reading)
                    self._feed(mma, wave, sums, r_a, r_b, reading.index, step > begin)
                    if cutlass.const_expr(p.two_levels):
                        stages.consumer_release(reading)
                    else:
                        warpgroup.commit_group()
                        warpgroup.wait_group(1)
                        if step > begin:
                            stages.consumer_release(freeing)
                            freeing.advance()
                        elif cutlass.const_expr(self.foresees):
                            self._open(self.staged)
                    reading.advance()
                if cutlass.const_expr(p.pingpong):
                    cute.arch.barrier_arrive(barrier_id=TURN + 2 - group, number_of_threads=256)
                if cutlass.const_expr(self.foresees) and work < all_work:
                    place = self._steps(work, rows, columns, splits, each, steps)
                self._open(self.smem_store)
                if cutlass.const_expr(not p.two_levels):
                    warpgroup.wait_group(0)
                    if end > begin:
                        stages.consumer_release(freeing)
                        freeing.advance()
                self._finish(
                    sums, places, c, more, at=TileAt(corner, (m, n)), ahead=ahead, phase=phase, span=(begin, end)
                )  # fmt: skip
                phase = 1 - phase
            self._close()
