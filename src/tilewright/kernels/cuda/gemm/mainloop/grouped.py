"""A product whose rows lie in stretches, each with a matrix of its own: what a mixture of experts multiplies (sm_90a).

    A is (M, K, 1), sorted by expert; B is (N, K, experts); C is (M, N, 1); ends[e] is the row behind the last of e

    rows    | ends[0]         | ends[1]   | ends[2] = ends[1] | ends[3]
    A       | 0 0 0 0 0 0 0 0 | 1 1 1 1 1 |                   | 3 3 3 3 3 3 3
    tiles   |  T0  |  T1  |   |  T2  |    |                   |  T3  |  T4  |

Ends are read on the device: nothing of them is known when it is launched. Every cluster walks along the experts and
takes every stride-th of all tiles. A stretch has tiles of its own, which begin at its first row: TMA starts at any row.
What a last tile reads of the next stretch is multiplied for nothing and not written. Tiles of an expert go along M
first, so that neighbours in time share its columns. Rows behind the last end are not written. In turns a warpgroup
takes every other tile of its CTA's, as a WgmmaProduct's does.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.pipeline import pipeline_init_arrive, pipeline_init_wait

from ..epilogue.expression import TileAt
from ..host.plan import Point
from .wgmma import TURN, WgmmaProduct


def takes(point: Point) -> bool:
    """Whether this kernel has such a Point: plain, whole sums, every tile written by the threads that made it."""
    apart = point.split_k > 1 or point.small_m or point.streamed or point.bulk or point.staged or point.stream_k
    return point.scheme == "plain" and not apart


class GroupedMainloop(WgmmaProduct):
    """Its tensors are A, B, C, the ends (experts,) of int32, operands."""

    def _row_tiles(self, begin: Any, end: Any) -> Any:
        """Tiles of a cluster that a stretch needs."""
        tall = self.point.tile_m * self.point.cluster_m
        return cute.ceil_div(cutlass.max(end - begin, Int32(0)), tall)

    @cute.kernel
    def _kernel(
        self, loads: list, c: cute.Tensor, more: list, mma: cute.TiledMma, layouts: list, out: list, splits: Int32,
        chunk: Int32,
    ) -> None:  # fmt: skip
        p = self.point
        tma_a, from_a, tma_b, from_b = loads[:4]
        ends, operands = more[0], more[1:]
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
        at, mask_a, mask_b = self._in_cluster()

        _, stages, s_a, s_b = self._stage_memory(layouts)
        pipeline_init_arrive(cluster_shape_mn=(p.cluster_m, p.cluster_n), is_relaxed=True)
        to_b, g_b = self._sides(tma_b, from_b, s_b, (p.tile_n, p.depth), at=at[0], together=p.cluster_m)

        group = cute.arch.make_warp_uniform(thread // 128)
        r_a, r_b, (parts_m, parts_n), fragment = self._fragments(mma, s_a, s_b, 0 if p.pingpong else group - 1)

        m, n, k = cute.size(from_a, mode=[0]), cute.size(from_b, mode=[0]), cute.size(from_a, mode=[1])
        experts = cute.size(ends, mode=[0])
        columns = cute.ceil_div(n, p.tile_n * p.cluster_n)
        steps = cute.ceil_div(k, p.depth)
        work = cute.arch.block_idx()[0] // p.cluster
        stride = cute.arch.grid_dim()[0] // p.cluster
        expert, before, begin = Int32(0), Int32(0), Int32(0)  # `before`: tiles of the experts before this one

        pipeline_init_wait(cluster_shape_mn=(p.cluster_m, p.cluster_n))
        self._start()

        if group == 0:
            cute.arch.setmaxregister_decrease(p.registers[0])
            if warp == 0:
                filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, p.depth_stages)
                while expert < experts:
                    end = cutlass.min(ends[expert], m)
                    rows = self._row_tiles(begin, end)
                    mine = cute.domain_offset((begin, 0, 0), from_a)
                    to_a, g_a = self._sides(tma_a, mine, s_a, (p.tile_m, p.depth), at=at[1], together=p.cluster_n)
                    while work - before < rows * columns:
                        column = (work - before) // rows
                        row = work - before - column * rows
                        for step in cutlass.range(steps, unroll=1):
                            stages.producer_acquire(filling)
                            barrier = stages.producer_get_barrier(filling)
                            cute.copy(
                                tma_a, g_a[(None, row * p.cluster_m + at[0], step, 0)], to_a[(None, filling.index)],
                                tma_bar_ptr=barrier, mcast_mask=mask_a,
                            )  # fmt: skip
                            cute.copy(
                                tma_b, g_b[(None, column * p.cluster_n + at[1], step, expert)],
                                to_b[(None, filling.index)], tma_bar_ptr=barrier, mcast_mask=mask_b,
                            )  # fmt: skip
                            stages.producer_commit(filling)
                            filling.advance()
                        work += stride
                    before += rows * columns
                    begin = cutlass.max(begin, end)
                    expert += 1
                stages.producer_tail(filling)
        else:
            cute.arch.setmaxregister_increase(p.registers[1])
            by_thread = mma.get_slice(thread % 128 if p.pingpong else thread - 128)
            places = by_thread.partition_C(cute.make_identity_tensor((p.tile_m, p.tile_n)))
            reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            freeing = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            sums = [cute.make_rmem_tensor(fragment, Float32) for _ in range(parts_m * parts_n)]
            if cutlass.const_expr(p.pingpong):  # every tile has as many steps: those of the other's are skipped
                work += (group - 1) * stride
                reading.advance((group - 1) * steps)
                freeing.advance((group - 1) * steps)
                if group == 2:
                    cute.arch.barrier_arrive(barrier_id=TURN, number_of_threads=256)
            while expert < experts:
                end = cutlass.min(ends[expert], m)
                rows = self._row_tiles(begin, end)
                while work - before < rows * columns:
                    column = (work - before) // rows
                    row = work - before - column * rows
                    for part in cutlass.range_constexpr(parts_m * parts_n):
                        sums[part].fill(0.0)
                    if cutlass.const_expr(p.pingpong):
                        cute.arch.barrier(barrier_id=TURN - 1 + group, number_of_threads=256)
                    for step in cutlass.range(steps, unroll=1):
                        stages.consumer_wait(reading)
                        for part in cutlass.range_constexpr(parts_m * parts_n):
                            warpgroup.fence()
                            self._chain(mma, sums[part], r_a, r_b, self.chains[0], part, reading.index, onto=True)
                        warpgroup.commit_group()
                        warpgroup.wait_group(1)
                        if step > 0:
                            stages.consumer_release(freeing)
                            freeing.advance()
                        reading.advance()
                    if cutlass.const_expr(p.pingpong):
                        cute.arch.barrier_arrive(barrier_id=TURN + 2 - group, number_of_threads=256)
                    warpgroup.wait_group(0)
                    stages.consumer_release(freeing)
                    freeing.advance()
                    top = begin + (row * p.cluster_m + at[0]) * p.tile_m
                    left = (column * p.cluster_n + at[1]) * p.tile_n
                    for part in cutlass.range_constexpr(parts_m * parts_n):
                        self.finish.store(
                            sums[part], places[(None, part % parts_m, part // parts_m)], c, operands, (),
                            at=TileAt((top, left, 0), (end, n)), block=p.block,
                        )  # fmt: skip
                    work += stride * p.turns
                    if cutlass.const_expr(p.pingpong):
                        reading.advance(steps)
                        freeing.advance(steps)
                before += rows * columns
                begin = cutlass.max(begin, end)
                expert += 1
