"""The product of matrices whose A is an im2col: the mainloop, the epilogues and the order of tiles are the product's.

`TmaIm2col`: one thread brings 64 channels of a tile's windows by one instruction (TMA's im2col mode, PTX ISA 5.5.3.5).

`AsyncIm2col`: a warpgroup copies chunks of 16 bytes past its registers (cp.async), zeros for what lies outside of x.
Who arrives at the barriers of a stage, in round r = 0, 1 .. of it:

    full    1 + LOADERS     the thread of warp 0 that expects B's bytes, which TMA adds, each thread that copies, once
                            all it has copied is there (cp.async.mbarrier.arrive.noinc)
    empty   4 a warpgroup   a lane of each warp that multiplies the tile, in each CTA that shares B

    threads that copy       wait until empty has completed r times (parity (r - 1) mod 2; the first wait passes at
                            once); copy; arrive at full
    warps that multiply     wait until full has completed r + 1 times (parity r mod 2); fence.proxy.async, as cp.async
                            writes by the generic proxy and wgmma reads by the async one; multiply; arrive at empty one
                            step later, when the wgmma of this step are known to have ended

No thread that copies waits for another, and none holds back an arrival: a stage that is free is filled whatever comes
behind it. In turns (`pingpong`) one warpgroup multiplies a tile, 4 warps arrive, and the other skips its stages.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.pipeline import pipeline_init_arrive, pipeline_init_wait

from ..gemm.epilogue.epilogue import EpilogueStore
from ..gemm.epilogue.expression import TileAt
from ..gemm.host.plan import DEPTH, Point
from ..gemm.mainloop.operand_loads import OperandLoads
from ..gemm.mainloop.wgmma import TURN, WgmmaProduct
from .im2col import LINE, LOADERS, ROWS_APART, spatial, upper_corner
from .im2col_addresses import Im2col, PixelAddress
from .ptx import copy_chunk


class _Im2colProduct(WgmmaProduct):
    """Its tensors are x, B as (columns, K, groups), C as (pixels, columns, groups), operands."""

    def __init__(self, point: Point, finish: EpilogueStore, windows: Im2col) -> None:
        super().__init__(point, finish)
        self.windows = windows
        self.implicit: Any = None

    def __call__(self, tensors: tuple[Any, ...], clusters: Any, splits: Any, chunk: Any, stream: Any) -> None:
        """Emit the launch."""
        x, *others = tensors
        s, k = self.windows.shape, self.windows.depth
        self.implicit = cute.make_tensor(x.iterator, cute.make_layout((s.pixels, k, s.groups), stride=(k, 1, k)))
        super().__call__((self.implicit, *others), clusters, splits, chunk, stream)


class TmaIm2col(_Im2colProduct):
    """See the module's docstring."""

    def _tma(self, tensor: Any, staged: Any, tile: tuple[int, int], multicast: int) -> tuple[Any, Any]:  # type: ignore[override]
        """TMA's copy, and the tensor of coordinates that it takes."""
        if tensor is not self.implicit:
            return OperandLoads._tma(tensor, staged, tile, multicast)
        s, (of_n, _, *steps) = self.windows.shape, self.windows.walk
        dims = spatial(s)
        of_rows = (*(s.image[d] for d in dims), s.batch), (*(steps[d] * 8 for d in dims), of_n * 8)
        layout = cute.make_layout((of_rows[0], s.channels), stride=(of_rows[1], 1))
        info = cpasync.make_im2col_tma_atom(
            cpasync.CopyBulkTensorIm2ColG2SOp(), cute.make_tensor(tensor.iterator, layout),
            cute.slice_(staged, (None, None, 0)), tile,
            lower_corner_whd=tuple(s.start[d] for d in dims), upper_corner_whd=tuple(upper_corner(s, d) for d in dims),
            lower_padding_whd=tuple(-s.start[d] for d in dims),
            upper_padding_whd=tuple(upper_corner(s, d) + (s.taps[d] - 1) * s.step[d] for d in dims),
            stride_whd=tuple(s.stride[d] for d in dims), lower_srt=(0,) * len(dims),
            stride_srt=tuple(s.step[d] for d in dims),
        )  # fmt: skip
        atom, found = info[0], info[1]
        assert (cute.size(found, mode=[0]), cute.size(found, mode=[1])) == (s.pixels, self.windows.depth)
        return atom, cute.make_tensor(found.iterator, cute.append(found.layout, cute.make_layout(1)))


class AsyncIm2col(_Im2colProduct):
    """See the module's docstring."""

    def __init__(self, point: Point, finish: EpilogueStore, windows: Im2col) -> None:
        super().__init__(point, finish, windows)
        self.foresees = False

    def _tma(self, tensor: Any, staged: Any, tile: tuple[int, int], multicast: int) -> tuple[Any, Any]:  # type: ignore[override]
        """Of A none: it stands for its copy."""
        return (tensor, tensor) if tensor is self.implicit else OperandLoads._tma(tensor, staged, tile, multicast)

    def _loads(self, shared: Any) -> Any:
        """The pipeline of loads."""
        p = self.point
        return pipeline.PipelineTmaAsync.create(
            barrier_storage=shared.allocate_array(cutlass.Int64, p.depth_stages * 2),
            num_stages=p.depth_stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1 + LOADERS),
            consumer_group=pipeline.CooperativeGroup(
                pipeline.Agent.Thread, (p.cluster_m + p.cluster_n - 1) * p.groups * 4
            ),
            tx_count=p.tile_n * DEPTH * 2,
            cta_layout_vmnk=cute.make_layout((1, p.cluster_m, p.cluster_n, 1)),
            defer_sync=True,
        )

    def _rows(self, tile: Any, group: Any, thread: Any) -> list[PixelAddress]:
        """Those that a thread copies."""
        first = tile * self.point.tile_m + thread // (LOADERS // ROWS_APART)
        return [self.windows.row(first + i, group) for i in range(0, self.point.tile_m, ROWS_APART)]

    def _fill(self, memory: Any, x: Any, stage: Any, rows: list[PixelAddress], at: tuple[Any, Any]) -> None:
        """This thread's chunks of a stage; `at`: the step, and the thread."""
        chunk, _, byte = self.windows.target(at[1])
        tap = self.windows.tap(at[0], chunk)
        target = memory + stage * (self.point.tile_m * LINE) + byte
        for i, row in enumerate(rows):
            offset, size = self.windows.source(row, tap)
            copy_chunk(target + i * (ROWS_APART * LINE), x + Int64(offset) * 16, size)

    @cute.kernel
    def _kernel(
        self, loads: list, c: cute.Tensor, more: list, mma: cute.TiledMma, layouts: list, out: list, splits: Int32,
        chunk: Int32,
    ) -> None:  # fmt: skip
        """As the product's, with what it calls A's TMA x."""
        p = self.point
        x, _, tma_b, from_b = loads[:4]
        tma_c, to_c, smem_c, tma_x, from_x = out
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            self._prefetch(tma_b, tma_b, tma_b, tma_c, tma_x)
        at, _, mask_b = self._in_cluster()

        shared = SmemAllocator()
        stages = self._loads(shared)
        s_a, s_b = (
            shared.allocate_tensor(self.element, layout.outer, byte_alignment=1024, swizzle=layout.inner)
            for layout in layouts
        )
        group = cute.arch.make_warp_uniform(thread // 128)
        self.staged = self._staged(shared, group, smem_c, (tma_c, to_c), (tma_x, from_x))
        pipeline_init_arrive(cluster_shape_mn=(p.cluster_m, p.cluster_n), is_relaxed=True)
        to_b, g_b = self._sides(tma_b, from_b, s_b, (p.tile_n, p.depth), at=at[0], together=p.cluster_m)

        self.smem_store = self._smem_store(tma_c, to_c, smem_c, shared, group, c.element_type)
        member = 0 if p.pingpong else group - 1
        r_a, r_b, (parts_m, parts_n), fragment = self._fragments(mma, s_a, s_b, member)

        m, n = self.windows.shape.pixels, self.windows.shape.columns
        rows = -(-m // (p.tile_m * p.cluster_m))
        columns = -(-n // (p.tile_n * p.cluster_n))
        steps = self.windows.steps
        work = cute.arch.block_idx()[0] // p.cluster
        stride = cute.arch.grid_dim()[0] // p.cluster
        all_work = rows * columns * self.windows.shape.groups

        pipeline_init_wait(cluster_shape_mn=(p.cluster_m, p.cluster_n))
        self._start()

        if group == 0:
            cute.arch.setmaxregister_decrease(p.registers[0])
            filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, p.depth_stages)
            memory, source = Int32(s_a.iterator.toint()), x.iterator.toint()
            while work < all_work:
                row, column, layer = self._place(work, rows, columns)
                mine = self._rows(row * p.cluster_m + at[0], layer, thread)
                for step in cutlass.range(steps, unroll=1):
                    barrier = stages.producer_get_barrier(filling)
                    if warp == 0:
                        stages.producer_acquire(filling)
                        cute.copy(
                            tma_b, g_b[(None, column * p.cluster_n + at[1], step, layer)], to_b[(None, filling.index)],
                            tma_bar_ptr=barrier, mcast_mask=mask_b,
                        )  # fmt: skip
                    else:
                        stages.sync_object_empty.wait(filling.index, filling.phase)
                    self._fill(memory, source, filling.index, mine, (step, thread))
                    cute.arch.cp_async_mbarrier_arrive_noinc(barrier)
                    filling.advance()
                work += stride
            if warp == 0:
                stages.producer_tail(filling)
        else:
            cute.arch.setmaxregister_increase(p.registers[1])
            by_thread = mma.get_slice(thread % 128 if p.pingpong else thread - 128)
            places = by_thread.partition_C(cute.make_identity_tensor((p.tile_m, p.tile_n)))
            reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            freeing = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            sums = [cute.make_rmem_tensor(fragment, Float32) for _ in range(parts_m * parts_n)]
            phase = Int32(0)
            if cutlass.const_expr(p.pingpong):  # every tile has as many steps: those of the other's are skipped
                work += (group - 1) * stride
                reading.advance((group - 1) * steps)
                freeing.advance((group - 1) * steps)
                if group == 2:
                    cute.arch.barrier_arrive(barrier_id=TURN, number_of_threads=256)
            while work < all_work:
                row, column, layer = self._place(work, rows, columns)
                corner = ((row * p.cluster_m + at[0]) * p.tile_m, (column * p.cluster_n + at[1]) * p.tile_n, layer)
                ahead = self._begin(places, more, corner, (m, n), member)
                for part in cutlass.range_constexpr(parts_m * parts_n):
                    sums[part].fill(0.0)
                if cutlass.const_expr(p.pingpong):
                    cute.arch.barrier(barrier_id=TURN - 1 + group, number_of_threads=256)
                for step in cutlass.range(steps, unroll=1):
                    stages.consumer_wait(reading)
                    cute.arch.fence_view_async_shared()
                    self._feed(mma, None, sums, r_a, r_b, reading.index, True)
                    warpgroup.commit_group()
                    warpgroup.wait_group(1)
                    if step > 0:
                        stages.consumer_release(freeing)
                        freeing.advance()
                    reading.advance()
                if cutlass.const_expr(p.pingpong):
                    cute.arch.barrier_arrive(barrier_id=TURN + 2 - group, number_of_threads=256)
                self._open(self.smem_store)
                warpgroup.wait_group(0)
                stages.consumer_release(freeing)
                freeing.advance()
                self._finish(
                    sums, places, c, more, at=TileAt(corner, (m, n)), ahead=ahead, phase=phase, span=(0, steps)
                )  # fmt: skip
                phase = 1 - phase
                work += stride * p.turns
                if cutlass.const_expr(p.pingpong):
                    reading.advance(steps)
                    freeing.advance(steps)
            self._close()
