"""A product with few columns: as fast as the large matrix comes from memory, in one kernel (sm_90a).

    A is (M, K, batch), large; B is (N, K, batch), N some 1 to 64: the tokens of a step of decoding; C is (M, N, batch)

    cluster of `split_k` CTAs      one tile of C, tile_m x tile_n; each CTA takes its share of K
    last warp                      TMA of A and B into stages; several CTAs share a multiprocessor, so that between them
                                   some 150 KB are on their way at any time
    warpgroups                     one chain of wgmma over the CTA's share of K; what they hold then goes through shared
                                   memory to the cluster's first CTA, which adds it up in order and writes C

    gated: a second A, as large and lying as the first; each is half of a stage, and the same warpgroup has two chains,
    so that a thread holds both sums of its elements of C, of tile_m / 2 rows; 64 go through wgmma where that are less,
    and the others, whatever they are, are not written

        rows of a stage    0 .. M_t / 2 - 1    M_t / 2 .. M_t - 1
        of                 A                   the second A, the same rows

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
    """A Point with `skinny`: its tensors are A, B, C, of a gated pair the second A, and the epilogue's operands."""

    def __call__(
        self, tensors: tuple[Any, ...], clusters: Any, splits: Any, chunk: Any, stream: Any
    ) -> None:  # fmt: skip
        """Emit the launch; `clusters`: tiles of C, `chunk`: K of a CTA."""
        p = self.point
        a, b, c, *more = tensors
        other = more.pop(0) if p.gated else a
        major_b = LayoutEnum.from_tensor(b)
        self.major_a = LayoutEnum.from_tensor(a)
        self.element = a.element_type
        self.outlet = None
        smem_a = self._of_stages()
        smem_b = hopper_helpers.make_smem_layout_b(
            major_b, (p.tile_m, p.tile_n, DEPTH), self.element, p.depth_stages
        )  # fmt: skip
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.element, self.element, self.major_a.sm90_mma_major_mode(), major_b.sm90_mma_major_mode(), Float32,
            (p.groups, 1, 1), tiler_mn=(64, p.tile_n),
        )  # fmt: skip
        tma_a, from_a = self._tma(a, smem_a, (self.box, DEPTH), 1)
        tma_g, from_g = self._tma(other, smem_a, (self.box, DEPTH), 1) if p.gated else (tma_a, from_a)
        tma_b, from_b = self._tma(b, smem_b, (p.tile_n, DEPTH), 1)

        kernel = self._skinny(
            tma_a, from_a, tma_g, from_g, tma_b, from_b, c, list(more), mma, smem_a, smem_b, chunk
        )  # fmt: skip
        self._launch(kernel, clusters, stream)

    def _of_stages(self) -> Any:
        """The memory of A's stages as TMA fills it, box by box."""
        p = self.point
        slots = p.depth_stages * (p.tile_m // self.box)
        return hopper_helpers.make_smem_layout_a(self.major_a, (self.box, p.tile_n, DEPTH), self.element, slots)

    @property
    def box(self) -> int:
        """Rows that TMA brings at once: a source's, if the DSL takes so many (multiples of 16)."""
        return self.point.rows if self.point.rows % 16 == 0 else 8

    @cute.kernel
    def _skinny(
        self, tma_a: cute.CopyAtom, from_a: cute.Tensor, tma_g: cute.CopyAtom, from_g: cute.Tensor,
        tma_b: cute.CopyAtom, from_b: cute.Tensor, c: cute.Tensor, more: list, mma: cute.TiledMma,
        smem_a: cute.ComposedLayout, smem_b: cute.ComposedLayout, chunk: Int32,
    ) -> None:  # fmt: skip
        p = self.point
        thread, _, _ = cute.arch.thread_idx()
        given = ((tma_a, from_a), (tma_g, from_g))[: p.tile_m // p.rows]
        warp, rank, stages, s_a, s_b = self._head(
            (*(tma for tma, _ in given), tma_b), (self.element, self.element), (smem_a, smem_b)
        )  # fmt: skip
        sides = [self._sides(tma, tensor, s_a, (self.box, DEPTH)) for tma, tensor in given]
        boxes = p.rows // self.box
        to_a, sources = sides[0][0], [(tma, tiles) for (tma, _), (_, tiles) in zip(given, sides, strict=True)]
        to_b, g_b = self._sides(tma_b, from_b, s_b, (p.tile_n, DEPTH))
        sizes = cute.size(from_a, mode=[0]), cute.size(from_b, mode=[0])
        row, column, layer, begin, end = self._own(sizes, cute.size(from_a, mode=[1]), rank, chunk)
        of_a, of_b = layer % cute.size(from_a, mode=[2]), layer % cute.size(from_b, mode=[2])
        board = Int32(s_a.iterator.toint())

        pipeline_init_wait(cluster_shape_mn=(p.cluster, 1))
        self._start()

        if warp == p.groups * 4:
            filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, p.depth_stages)
            for step in cutlass.range(begin, end, unroll=1):
                stages.producer_acquire(filling)
                barrier = stages.producer_get_barrier(filling)
                for i in cutlass.range_constexpr(len(sources) * boxes):
                    tma, tiles = sources[i // boxes]
                    slot = to_a[(None, filling.index * (len(sources) * boxes) + i)]
                    cute.copy(tma, tiles[(None, row * boxes + i % boxes, step, of_a)], slot, tma_bar_ptr=barrier)
                cute.copy(tma_b, g_b[(None, column, step, of_b)], to_b[(None, filling.index)], tma_bar_ptr=barrier)
                stages.producer_commit(filling)
                filling.advance()
            if cutlass.const_expr(self.early and p.cluster == 1):
                cute.arch.griddepcontrol_launch_dependents()
            self._emptied(stages, filling)
        else:
            group = cute.arch.make_warp_uniform(thread // 128)
            by_group = mma.get_slice(cute.make_layout(p.groups, stride=128)(group))
            r_a = mma.make_fragment_A(
                by_group.partition_A(self._multiplied(s_a))
            )  # (atom, 1, blocks of K, (source, slot))
            r_b = mma.make_fragment_B(by_group.partition_B(s_b))
            places = mma.get_slice(thread).partition_C(cute.make_identity_tensor((64 * p.groups, p.tile_n)))
            reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            freeing = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            fragment = cute.make_layout(((2, 2, p.tile_n // 8), 1, 1))
            totals = [cute.make_rmem_tensor(fragment, Float32) for _ in range(p.tile_m // p.rows)]
            for half in cutlass.range_constexpr(len(totals)):
                totals[half].fill(0.0)
            for step in cutlass.range(begin, end, unroll=1):
                stages.consumer_wait(reading)
                warpgroup.fence()
                for half in cutlass.range_constexpr(len(totals)):
                    own = r_a[(None, None, None, (half, None))]
                    self._chain(mma, totals[half], own, r_b, self.chains[0], 0, reading.index, onto=True)
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
                self._gather(totals, board, thread, rank)
            if rank == 0:
                made = Gate(*totals) if p.gated else totals[0]
                self.finish.store(
                    made, places[(None, 0, 0)], c, more, (), corner=(row * p.rows, column * p.tile_n, layer),
                    sizes=sizes if p.rows % 64 == 0 else (cutlass.min(sizes[0], (row + 1) * p.rows), sizes[1]),
                )  # fmt: skip

    def _multiplied(self, s_a: Any) -> Any:
        """A's stages as wgmma takes them, (rows, K, (source, slot)): 64 rows of each source also where its tile has
        less, the last of which are others', and are not written."""
        p = self.point
        sources, rows = p.tile_m // p.rows, 64 * p.groups
        lines, along = ((8, rows // 8), (64, 512)), ((DEPTH, 1), (1, 0))
        if not self.major_a.is_k_major_a():
            lines, along = ((64, rows // 64), (1, 64 * DEPTH)), ((8, DEPTH // 8), (64, 512))
        slots = ((sources, p.depth_stages), (p.rows * DEPTH, p.tile_m * DEPTH))
        shapes, strides = zip(lines, along, slots, strict=True)
        return cute.make_tensor(s_a.iterator, cute.make_layout(shapes, stride=strides))

    def _start(self) -> None:
        """As a Product's; but where no cluster shares K, the next kernel is let in when all that this one reads has
        been asked for: CTAs that come sooner wait in the places of a multiprocessor, unevenly (a gate of 224 CTAs takes
        59.1 us instead of 65.3, in two kernels 62 instead of 77; clusters would lose 2 to 3 us; H200, 2026-11-23)."""
        if self.point.cluster > 1:
            super()._start()
        elif self.early:
            cute.arch.griddepcontrol_wait()

    def _head(self, maps: tuple[Any, ...], kinds: tuple[Any, Any], layouts: tuple[Any, Any]) -> tuple[Any, ...]:
        """How every CTA begins: its warp, its rank, the pipeline of stages, which it frees itself, and their memory, of
        A's and of B's `kinds`; `maps` are what TMA goes by."""
        p = self.point
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        def fetch() -> None:
            for own in maps:
                cpasync.prefetch_descriptor(own)

        when(warp == p.groups * 4, fetch)
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) if p.cluster > 1 else Int32(0)
        shared = SmemAllocator()
        stages = self._stages(shared, readers=p.groups * 4, cluster=(p.cluster, 1), mcast_mode_mn=(1, 0))
        s_a, s_b = (
            shared.allocate_tensor(kind, layout.outer, byte_alignment=1024, swizzle=layout.inner)
            for kind, layout in zip(kinds, layouts, strict=True)
        )
        pipeline_init_arrive(cluster_shape_mn=(p.cluster, 1), is_relaxed=True)
        return warp, rank, stages, s_a, s_b

    def _own(self, sizes: tuple[Any, Any], k: Any, rank: Any, chunk: Any) -> tuple[Any, ...]:
        """(row, column, layer) of a cluster's tile, and a CTA's first and last step of K."""
        p = self.point
        rows, columns = cute.ceil_div(sizes[0], p.rows), cute.ceil_div(sizes[1], p.tile_n)
        work = cute.arch.block_idx()[0] // p.cluster
        layer = work // (rows * columns)
        rest = work - layer * (rows * columns)
        row = rest // columns
        column = rest - row * columns  # neighbours in time read the same of A
        steps = cute.ceil_div(k, p.depth)
        if self.reach is not None:
            return row, column, layer, *self._share(rank, steps, row, column)
        begin = rank * (chunk // p.depth)
        return row, column, layer, begin, cutlass.min(begin + chunk // p.depth, steps)

    def _emptied(self, stages: Any, filling: Any) -> None:
        """The loading warp ends with the others, who may read shared memory of its cluster."""
        stages.producer_tail(filling)
        if self.point.cluster > 1:
            cute.arch.sync_warp()
            for _ in range(2):
                cute.arch.cluster_arrive()
                cute.arch.cluster_wait()

    def _share(self, rank: Any, steps: Any, row: Any, column: Any) -> tuple[Any, Any]:
        """A CTA's of the steps that its tile needs."""
        assert self.reach is not None
        first, last = self.reach.steps(Int32(0), steps, row, column)
        share = cute.ceil_div(last - first, self.point.cluster)
        begin = first + rank * share
        return begin, cutlass.min(begin + share, last)

    def _gather(self, totals: list[Any], board: Any, thread: Any, rank: Any) -> None:
        """The sums of all CTAs, in the first one's registers; stages lie idle, and hold what is passed on."""
        p = self.point
        stride = p.groups * 128 * WORD
        each = [(total, e) for total in totals for e in range(cute.size(total))]
        mine = [board + thread * WORD + i * stride for i in range(len(each))]

        def put() -> None:
            for there, (total, e) in zip(mine, each, strict=True):
                _put(there, total[e])

        def take() -> None:
            for other in range(1, p.cluster):
                for there, (total, e) in zip(mine, each, strict=True):
                    total[e] = kept("add.rn.f32 $0, $1, $2;", "=f,f,f", total[e], _distant(there, other))

        cute.arch.barrier(barrier_id=1, number_of_threads=p.groups * 128)  # everybody has read the stages
        when(rank > Int32(0), put)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        when(rank == Int32(0), take)
        cute.arch.cluster_arrive()  # nobody leaves before it was read
        cute.arch.cluster_wait()
