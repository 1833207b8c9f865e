"""A product with few columns: as fast as the large matrix comes from memory, in one kernel (sm_90a).

    A is (M, K, batch), large; B is (N, K, batch), N some 1 to 64: the tokens of a step of decoding; C is (M, N, batch)

    cluster of `split_k` CTAs      one tile of C, tile_m x tile_n; each CTA takes its share of K
    last warp                      TMA of A and B into stages; several CTAs share a multiprocessor, so that between them
                                   some 150 KB are on their way at any time
    warpgroups                     one chain of wgmma over the CTA's share of K; what they hold then goes to the CTAs of
                                   the cluster, each of which adds up and writes some columns (see `dsmem_reduction`)

    dual: a second A, as large and lying as the first; each is half of a stage, and the same warpgroup has two chains,
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

from ...common.control import when
from ..epilogue.dsmem_reduction import DsmemReduction
from ..epilogue.epilogue import Gate
from ..epilogue.expression import TileAt
from ..host.plan import DEPTH
from .wgmma import WgmmaProduct


class SmallM(WgmmaProduct):
    """A Point with `small_m`: its tensors are A, B, C, of a dual pair the second A, and the epilogue's operands."""

    def __call__(
        self, tensors: tuple[Any, ...], clusters: Any, splits: Any, chunk: Any, stream: Any
    ) -> None:  # fmt: skip
        """Emit the launch; `clusters`: tiles of C, `chunk`: K of a CTA."""
        p = self.point
        a, b, c, *more = tensors
        other = more.pop(0) if p.dual else a
        major_b = LayoutEnum.from_tensor(b)
        self.major_a = LayoutEnum.from_tensor(a)
        self.element = a.element_type
        self.smem_store = None
        smem_a = self._of_stages()
        smem_b = hopper_helpers.make_smem_layout_b(
            major_b, (p.tile_m, p.tile_n, DEPTH), self.element, p.depth_stages
        )  # fmt: skip
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.element, self.element, self.major_a.sm90_mma_major_mode(), major_b.sm90_mma_major_mode(), Float32,
            (p.groups, 1, 1), tiler_mn=(64, p.tile_n),
        )  # fmt: skip
        tma_a, from_a = self._tma(a, smem_a, (self.box, DEPTH), 1)
        tma_g, from_g = self._tma(other, smem_a, (self.box, DEPTH), 1) if p.dual else (tma_a, from_a)
        tma_b, from_b = self._tma(b, smem_b, (p.tile_n, DEPTH), 1)

        kernel = self._small_m(
            [tma_a, from_a, tma_g, from_g, tma_b, from_b], c, list(more), mma, [smem_a, smem_b], chunk
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
    def _small_m(
        self, loads: list, c: cute.Tensor, more: list, mma: cute.TiledMma, layouts: list, chunk: Int32
    ) -> None:
        """`loads`: TMA's copy and the tensor of A, the second A and B; `layouts`: of A's and B's stages."""
        p = self.point
        tma_a, from_a, tma_g, from_g, tma_b, from_b = loads
        smem_a, smem_b = layouts
        thread, _, _ = cute.arch.thread_idx()
        given = ((tma_a, from_a), (tma_g, from_g))[: p.tile_m // p.rows]
        warp, rank, shares, stages, s_a, s_b = self._head(
            thread, (*(tma for tma, _ in given), tma_b), (self.element, self.element), (smem_a, smem_b)
        )  # fmt: skip
        sides = [self._sides(tma, tensor, s_a, (self.box, DEPTH)) for tma, tensor in given]
        boxes = p.rows // self.box
        to_a, sources = sides[0][0], [(tma, tiles) for (tma, _), (_, tiles) in zip(given, sides, strict=True)]
        to_b, g_b = self._sides(tma_b, from_b, s_b, (p.tile_n, DEPTH))
        sizes = cute.size(from_a, mode=[0]), cute.size(from_b, mode=[0])
        row, column, layer, begin, end = self._own(sizes, cute.size(from_a, mode=[1]), rank, chunk)
        of_a, of_b = (self.finish.layer_of(side, layer, x) for side, x in enumerate((from_a, from_b)))

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
            stages.producer_tail(filling)
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
            within = sizes if p.rows % 64 == 0 else (cutlass.min(sizes[0], (row + 1) * p.rows), sizes[1])
            self._end(totals, shares, (rank, thread), places[(None, 0, 0)], c, more, (row, column, layer), within)

    def _end(
        self, totals: list[Any], shares: DsmemReduction | None, who: tuple[Any, Any], places: Any, c: Any,
        operands: list[Any], tile: tuple[Any, Any, Any], sizes: tuple[Any, Any],
    ) -> None:  # fmt: skip
        """Write the tile (row, column, layer), or this CTA's share of it once all of the cluster have been heard.
        `who`: this CTA's rank, and its thread."""
        p, (rank, thread) = self.point, who
        row, column, layer = tile

        def write() -> None:
            sums = totals if shares is None else shares.received(thread)
            at = TileAt((row * p.rows, column * p.tile_n + rank * p.share, layer), sizes)
            self.finish.store(Gate(*sums) if p.dual else sums[0], places, c, operands, (), at=at)

        if shares is None:
            write()
            return
        shares.send(totals, rank=rank, thread=thread)
        when(rank < p.tile_n // p.share, write)

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
        """As a WgmmaProduct's; but where no cluster shares K, the next kernel is let in when all that this one reads
        has been asked for: CTAs that come sooner wait in the places of a multiprocessor, unevenly (a gate of 224 CTAs
        takes 59.1 us instead of 65.3, in two kernels 62 instead of 77; clusters would lose 2 to 3 us; H200,
        2026-11-23)."""
        if self.point.cluster > 1:
            super()._start()
        elif self.early:
            cute.arch.griddepcontrol_wait()

    def _head(
        self, thread: Any, maps: tuple[Any, ...], kinds: tuple[Any, Any], layouts: tuple[Any, Any]
    ) -> tuple[Any, ...]:
        """How every CTA begins: its warp, its rank, what the cluster sends it, the pipeline of stages, which it frees
        itself, and their memory, of A's and of B's `kinds`; `maps` are what TMA goes by."""
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
        shares = DsmemReduction(p, shared, s_a.iterator) if p.cluster > 1 else None
        if shares is not None:
            shares.open(thread)
        pipeline_init_arrive(cluster_shape_mn=(p.cluster, 1), is_relaxed=True)
        return warp, rank, shares, stages, s_a, s_b

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
            first, last = self.reach.steps(Int32(0), steps, row, column)
            share = cute.ceil_div(last - first, p.cluster)
            begin = first + rank * share
            return row, column, layer, begin, cutlass.min(begin + share, last)
        begin = rank * (chunk // p.depth)
        return row, column, layer, begin, cutlass.min(begin + chunk // p.depth, steps)
