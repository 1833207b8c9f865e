"""A product with few columns: as fast as the large matrix comes from memory, in one kernel (sm_90a).

    A is (M, K, batch), large; B is (N, K, batch), N some 1 to 64: the tokens of a step of decoding; C is (M, N, batch)

    cluster of `split_k` CTAs      one tile of C, tile_m x tile_n; each CTA takes its share of K
    last warp                      TMA of A and B into stages; several CTAs share a multiprocessor, so that between them
                                   some 150 KB are on their way at any time
    warpgroups                     one chain of wgmma over the CTA's share of K; what they hold then goes through shared
                                   memory to the cluster's first CTA, which adds it up in order and writes C

No partial sum goes to memory, and no second kernel is launched, which for 20 MB of weights would cost as much as half
of their way.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.pipeline import pipeline_init_arrive, pipeline_init_wait
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ..control import when
from .finish import Gate
from .plan import DEPTH
from .product import Product
from .waves import kept

WORD = 4  # bytes


def _put(address: Any, value: Any) -> None:
    cute.arch.inline_ptx("st.shared.f32 [{$r0}], {$r1};", read_only_args=[Int32(address), Float32(value)])


def _distant(address: Any, rank: int) -> Float32:
    """What lies at this address of shared memory in another CTA of the cluster."""
    text = "{ .reg .b32 there; mapa.shared::cluster.u32 there, {$r0}, {$r1}; ld.shared::cluster.f32 {$w0}, [there]; }"
    args = [Int32(address), Int32(rank)]
    return Float32(cute.arch.inline_ptx(text, write_only_types=[Float32], read_only_args=args))


class Skinny(Product):
    """A Point with `skinny`: its tensors are A, B, C, of a gated pair the second B, and the epilogue's operands."""

    def __call__(
        self, tensors: tuple[Any, ...], clusters: Any, splits: Any, chunk: Any, stream: Any
    ) -> None:  # fmt: skip
        """Emit the launch; `clusters`: tiles of C, `chunk`: K of a CTA."""
        p = self.point
        a, b, c, *more = tensors
        other = more.pop(0) if p.gated else b
        major_a, major_b = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
        self.element = a.element_type
        self.outlet = None
        self.major_b = major_b
        tile = (p.tile_m, p.tile_n, DEPTH)
        smem_a = hopper_helpers.make_smem_layout_a(major_a, tile, self.element, p.depth_stages)
        smem_b = hopper_helpers.make_smem_layout_b(major_b, tile, self.element, p.depth_stages)
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.element, self.element, major_a.sm90_mma_major_mode(), major_b.sm90_mma_major_mode(), Float32,
            (p.groups, 1, 1), tiler_mn=(64, p.tile_n),
        )  # fmt: skip
        tma_a, from_a = self._tma(a, smem_a, (p.tile_m, DEPTH), 1)
        halves = self._halves()
        tma_b, from_b = self._tma(b, halves, (p.columns, DEPTH), 1)
        tma_g, from_g = self._tma(other, halves, (p.columns, DEPTH), 1) if p.gated else (tma_b, b)

        kernel = self._skinny(
            tma_a, from_a, tma_b, from_b, tma_g, from_g, c, list(more), mma, smem_a, smem_b, chunk
        )  # fmt: skip
        self._launch(kernel, clusters, stream)

    @cute.kernel
    def _skinny(
        self, tma_a: cute.CopyAtom, from_a: cute.Tensor, tma_b: cute.CopyAtom, from_b: cute.Tensor,
        tma_g: cute.CopyAtom, from_g: cute.Tensor, c: cute.Tensor, more: list, mma: cute.TiledMma,
        smem_a: cute.ComposedLayout, smem_b: cute.ComposedLayout, chunk: Int32,
    ) -> None:  # fmt: skip
        p = self.point
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == p.groups * 4:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
        rank = Int32(0)
        if cutlass.const_expr(p.cluster > 1):
            rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())

        shared = SmemAllocator()
        # Every CTA frees its own stages.
        stages = self._stages(shared, readers=p.groups * 4, cluster=(p.cluster, 1), mcast_mode_mn=(1, 0))
        s_a = shared.allocate_tensor(self.element, smem_a.outer, byte_alignment=1024, swizzle=smem_a.inner)
        s_b = shared.allocate_tensor(self.element, smem_b.outer, byte_alignment=1024, swizzle=smem_b.inner)
        pipeline_init_arrive(cluster_shape_mn=(p.cluster, 1), is_relaxed=True)
        to_a, g_a = self._sides(tma_a, from_a, s_a, (p.tile_m, DEPTH))
        to_b, sources = self._sources(((tma_b, from_b), (tma_g, from_g)), s_b, 0)

        m, n, k = cute.size(from_a, mode=[0]), cute.size(from_b, mode=[0]), cute.size(from_a, mode=[1])
        rows, columns = cute.ceil_div(m, p.tile_m), cute.ceil_div(n, p.columns)
        work = cute.arch.block_idx()[0] // p.cluster
        layer = work // (rows * columns)
        rest = work - layer * (rows * columns)
        row = rest // columns
        column = rest - row * columns  # neighbours in time read the same of A
        of_a, of_b = layer % cute.size(from_a, mode=[2]), layer % cute.size(from_b, mode=[2])
        begin = rank * (chunk // DEPTH)
        end = cutlass.min(begin + chunk // DEPTH, cute.ceil_div(k, DEPTH))
        if cutlass.const_expr(self.reach is not None):
            begin, end = self._share(rank, cute.ceil_div(k, DEPTH), row, column)
        board = Int32(s_a.iterator.toint())

        pipeline_init_wait(cluster_shape_mn=(p.cluster, 1))
        self._start()

        if warp == p.groups * 4:
            filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, p.depth_stages)
            for step in cutlass.range(begin, end, unroll=1):
                stages.producer_acquire(filling)
                barrier = stages.producer_get_barrier(filling)
                cute.copy(tma_a, g_a[(None, row, step, of_a)], to_a[(None, filling.index)], tma_bar_ptr=barrier)
                for half in cutlass.range_constexpr(len(sources)):
                    tma, tiles = sources[half]
                    slot = to_b[(None, filling.index * len(sources) + half)]
                    cute.copy(tma, tiles[(None, column, step, of_b)], slot, tma_bar_ptr=barrier)
                stages.producer_commit(filling)
                filling.advance()
            stages.producer_tail(filling)
            if cutlass.const_expr(p.cluster > 1):
                cute.arch.sync_warp()
                for _ in cutlass.range_constexpr(2):
                    cute.arch.cluster_arrive()
                    cute.arch.cluster_wait()
        else:
            group = cute.arch.make_warp_uniform(thread // 128)
            by_group = mma.get_slice(cute.make_layout(p.groups, stride=128)(group))
            r_a = mma.make_fragment_A(by_group.partition_A(s_a))  # (atom, 1, blocks of K, slots)
            r_b = mma.make_fragment_B(by_group.partition_B(s_b))
            places = mma.get_slice(thread).partition_C(cute.make_identity_tensor((p.tile_m, p.tile_n)))
            reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            freeing = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            total = cute.make_rmem_tensor(cute.make_layout(((2, 2, p.tile_n // 8), 1, 1)), Float32)
            total.fill(0.0)
            for step in cutlass.range(begin, end, unroll=1):
                stages.consumer_wait(reading)
                warpgroup.fence()
                self._chain(mma, total, r_a, r_b, self.chains[0], 0, reading.index, fresh=False)
                warpgroup.commit_group()
                warpgroup.wait_group(1)
                if step > begin:
                    stages.consumer_release(freeing)
                    freeing.advance()
                reading.advance()
            warpgroup.wait_group(0)
            if end > begin:
                stages.consumer_release(freeing)
            if cutlass.const_expr(p.cluster > 1):
                self._gather(total, board, thread, rank)
            if rank == 0:
                made = Gate(total) if p.gated else total
                self.finish.store(
                    made, places[(None, 0, 0)], c, more, (), corner=(row * p.tile_m, column * p.columns, layer),
                    sizes=(m, n),
                )  # fmt: skip

    def _share(self, rank: Any, steps: Any, row: Any, column: Any) -> tuple[Any, Any]:
        """A CTA's of the steps that its tile needs."""
        assert self.reach is not None
        first, last = self.reach.steps(Int32(0), steps, row, column)
        share = cute.ceil_div(last - first, self.point.cluster)
        begin = first + rank * share
        return begin, cutlass.min(begin + share, last)

    def _gather(self, total: Any, board: Any, thread: Any, rank: Any) -> None:
        """The sums of all CTAs, in the first one's registers; stages lie idle, and hold what is passed on."""
        p = self.point
        count, stride = cute.size(total), p.groups * 128 * WORD
        mine = board + thread * WORD

        def put() -> None:
            for e in range(count):
                _put(mine + e * stride, total[e])

        def take() -> None:
            for other in range(1, p.cluster):
                for e in range(count):
                    total[e] = kept("add.rn.f32 $0, $1, $2;", "=f,f,f", total[e], _distant(mine + e * stride, other))

        cute.arch.barrier(barrier_id=1, number_of_threads=p.groups * 128)  # everybody has read the stages
        when(rank > Int32(0), put)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        when(rank == Int32(0), take)
        cute.arch.cluster_arrive()  # nobody leaves before it was read
        cute.arch.cluster_wait()
