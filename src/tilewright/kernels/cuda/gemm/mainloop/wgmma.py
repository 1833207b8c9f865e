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
last, and take no steps. Of a factor with zeros but for some diagonals (`zeros`) steps are left out (see `reach`).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.pipeline import pipeline_init_arrive, pipeline_init_wait
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ...common.math import select
from ..epilogue.epilogue import EpilogueStore
from ..epilogue.smem_tile import Staging
from ..epilogue.tile_end import TileEnd
from ..epilogue.tma_store import copies
from ..host.plan import BAND, Chain, Point, chains_of
from .k_range import NO_ZEROS, KRange, Zeros
from .tile_order import Band, in_bands
from .two_level import promote, scale_back

TURN = 3  # named barrier of the first warpgroup's turn; the next one is of the second's. An TmaStore has 1 and 2


class WgmmaProduct(TileEnd):
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
            tma_a, from_a, tma_b, from_b, tma_g, from_g, c, list(more), mma, smem_a, smem_b, tma_c, to_c, smem_c,
            tma_x, from_x, splits, chunk,
        )  # fmt: skip
        self._launch(kernel, clusters, stream)

    def _launch(self, kernel: Any, clusters: Any, stream: Any) -> None:
        p = self.point
        kernel.launch(
            grid=[clusters * p.cluster, 1, 1],
            block=[p.threads, 1, 1],
            cluster=[p.cluster, 1, 1],
            min_blocks_per_mp=p.resident,
            preferred_smem_carveout=100,
            use_pdl=self.early,
            stream=stream,
        )

    def _start(self) -> None:
        """Before memory is touched, an `early` launch waits until the one before has ended, and lets the next be
        launched as early (programmatic dependent launch, CUDA Programming Guide)."""
        if self.early:
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()

    def _in_cluster(self) -> tuple[Any, Any, Any]:
        """Where a CTA stands in its cluster, and who gets what it loads of A, and of B."""
        p = self.point
        layout_mn = cute.make_layout((p.cluster_m, p.cluster_n, 1))
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        at = layout_mn.get_flat_coord(rank)
        mask_a = cute.make_layout_image_mask(layout_mn, at, mode=1) if p.cluster_n > 1 else 0
        mask_b = cute.make_layout_image_mask(layout_mn, at, mode=0) if p.cluster_m > 1 else 0
        return at, mask_a, mask_b

    def _fragments(self, mma: Any, s_a: Any, s_b: Any, member: Any) -> tuple[Any, Any, tuple[Any, Any], Any]:
        """What a warpgroup multiplies of a stage, of A and of B as (atom, parts of M or N, blocks of K, slots); the
        numbers of parts; and the layout of the sums of one of each."""
        by_group = mma.get_slice(cute.make_layout(self.point.groups, stride=128)(member))
        r_a = mma.make_fragment_A(by_group.partition_A(s_a))
        r_b = mma.make_fragment_B(by_group.partition_B(s_b))
        fragment = cute.make_layout(((2, 2, self.point.atom_n // 8), 1, 1))
        return r_a, r_b, (cute.size(r_a, mode=[1]), cute.size(r_b, mode=[1])), fragment

    @staticmethod
    def _tma(tensor: Any, staged: Any, tile: tuple[int, int], multicast: int) -> tuple[Any, Any]:
        op = cpasync.CopyBulkTensorTileG2SOp() if multicast == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        layout = cute.slice_(staged, (None, None, 0))
        made: tuple[Any, Any] = cpasync.make_tiled_tma_atom(op, tensor, layout, tile, num_multicast=multicast)
        return made

    @staticmethod
    def _sides(
        tma: Any, tensor: Any, staged: Any, tile: tuple[int, int], *, at: Any = 0, together: int = 1
    ) -> tuple[Any, Any]:
        """(bytes of a stage, slot) of shared memory, and (the same bytes, tile, step of K, plane) of the tensor: what
        this CTA, number `at` of those that load a tile `together`, copies."""
        made: tuple[Any, Any] = cpasync.tma_partition(
            tma, at, cute.make_layout(together), cute.group_modes(staged, 0, 2),
            cute.group_modes(cute.local_tile(tensor, tile, (None, None, None)), 0, 2),
        )  # fmt: skip
        return made

    def _halves(self) -> Any:
        """The memory of B's stages as TMA sees it: as many tiles as it has sources."""
        p = self.point
        slots = p.depth_stages * p.planes * (p.tile_n // p.columns)
        return hopper_helpers.make_smem_layout_b(self.major_b, (p.tile_m, p.columns, p.depth), self.element, slots)

    def _sources(self, given: tuple[tuple[Any, Any], ...], s_b: Any, at: Any) -> tuple[Any, list[tuple[Any, Any]]]:
        """The halves of B's stages as TMA fills them, and the copy and the tiles of each source: one, if not dual."""
        p = self.point
        halves = cute.make_tensor(s_b.iterator, self._halves().outer)
        sides = [
            self._sides(tma, tensor, halves, (p.columns, p.depth), at=at, together=p.cluster_m)
            for tma, tensor in given[: p.tile_n // p.columns]
        ]
        return sides[0][0], [(tma, tiles) for (tma, _), (_, tiles) in zip(given, sides, strict=False)]

    def _stages(self, shared: Any, *, readers: int, cluster: tuple[int, int], **more: Any) -> Any:
        """The pipeline of loads; `readers`: warps, of all CTAs, that free a stage."""
        p = self.point
        return pipeline.PipelineTmaAsync.create(
            barrier_storage=shared.allocate_array(cutlass.Int64, p.depth_stages * 2),
            num_stages=p.depth_stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, readers),
            tx_count=p.stage_bytes,
            cta_layout_vmnk=cute.make_layout((1, *cluster, 1)),
            defer_sync=True,
            **more,
        )

    def _place(self, work: Any, rows: Any, columns: Any) -> tuple[Any, Any, Any]:
        """(row, column, layer of C) of a cluster tile: layers outermost, then bands, columns, rows of a band."""
        tiles = rows * columns
        layer = work // tiles
        rest = work - layer * tiles
        if self.band is not None:
            return *self.band.place(rest, rows, columns), layer
        reach = self.reach
        if reach is not None and reach.by_columns:
            rows, columns = columns, rows
        row, column = in_bands(rest, rows, columns, BAND)
        if reach is None:
            return row, column, layer
        row = rows - 1 - row if reach.backwards else row
        return (column, row, layer) if reach.by_columns else (row, column, layer)

    def _turn(self, work: Any, stride: Any, all_work: Any) -> Any:
        """The number of the cluster tile that has this turn."""
        return work if self.reach is None else self.reach.turn(work, stride, all_work)

    def _rounds(self, tiles: Any, steps: Any) -> tuple[Any, Any, Any]:
        """A cluster's first tile, the distance to its next, and the end of all."""
        p = self.point
        return cute.arch.block_idx()[0] // p.cluster, cute.arch.grid_dim()[0] // p.cluster, tiles

    def _steps(self, turn: Any, rows: Any, columns: Any, splits: Any, each: Any, steps: Any) -> tuple[Any, ...]:
        """(row, column, layer) of a cluster tile, and the first and the last of its steps of K."""
        row, column, layer = self._place(turn, rows, columns)
        begin = (layer - layer // splits * splits) * each
        return row, column, layer, *self._range(begin, cutlass.min(begin + each, steps), row, column, columns)

    def _range(self, begin: Any, end: Any, row: Any, column: Any, columns: Any) -> tuple[Any, Any]:
        """The first and the last step of a cluster tile; of one that the result does not depend on, none."""
        if self.reach is not None:
            begin, end = self.reach.steps(begin, end, row, column)
        return begin, end if self.band is None else select(self.band.needs(row, column, columns), end, begin)

    @cute.kernel
    def _kernel(
        self, tma_a: cute.CopyAtom, from_a: cute.Tensor, tma_b: cute.CopyAtom, from_b: cute.Tensor,
        tma_g: cute.CopyAtom, from_g: cute.Tensor, c: cute.Tensor, more: list, mma: cute.TiledMma,
        smem_a: cute.ComposedLayout, smem_b: cute.ComposedLayout, tma_c: cute.CopyAtom, to_c: cute.Tensor,
        smem_c: cute.ComposedLayout, tma_x: cute.CopyAtom, from_x: cute.Tensor, splits: Int32, chunk: Int32,
    ) -> None:  # fmt: skip
        p = self.point
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            self._prefetch(tma_a, tma_b, tma_g, tma_c, tma_x)
        at, mask_a, mask_b = self._in_cluster()

        shared = SmemAllocator()
        readers = (p.cluster_m + p.cluster_n - 1) * p.groups * 4
        stages = self._stages(shared, readers=readers, cluster=(p.cluster_m, p.cluster_n))
        s_a = shared.allocate_tensor(self.element, smem_a.outer, byte_alignment=1024, swizzle=smem_a.inner)
        s_b = shared.allocate_tensor(self.element, smem_b.outer, byte_alignment=1024, swizzle=smem_b.inner)
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
                    sums, places, c, more, corner=corner, sizes=(m, n), ahead=ahead, phase=phase, span=(begin, end)
                )  # fmt: skip
                phase = 1 - phase
            self._close()

    def _feed(self, mma: Any, wave: Any, sums: list[Any], r_a: Any, r_b: Any, stage: Any, onto: Any) -> None:
        """wgmma of one stage for all parts; of plain ones a block of K for all parts before the next."""
        if self.point.two_levels:
            for part, total in enumerate(sums):
                self._step(mma, wave, total, r_a, r_b, part, stage)
            return
        warpgroup.fence()
        for block, (part, total) in itertools.product(self.chains[0].blocks, enumerate(sums)):
            chain = replace(self.chains[0], blocks=range(block, block + 1))
            self._chain(mma, total, r_a, r_b, chain, part, stage, onto=onto if block == 0 and self.foresees else True)

    def _step(self, mma: Any, wave: Any, total: Any, r_a: Any, r_b: Any, part: int, stage: Any) -> None:
        """The chains of one part over one stage, promoted."""
        onto = False
        for chain in self.chains:
            warpgroup.fence()
            self._chain(mma, wave, r_a, r_b, chain, part, stage, onto=onto)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            onto = bool(chain.shift)
            if onto:
                scale_back(wave, chain.shift)
            else:
                promote(total, wave)

    def _chain(
        self, mma: Any, total: Any, r_a: Any, r_b: Any, chain: Chain, part: int, stage: Any, *, onto: Any
    ) -> None:  # fmt: skip
        """The wgmma of one part over one stage, added `onto` what `total` held or not."""
        p = self.point
        parts_m = cute.size(r_a, mode=[1])
        atom = cute.make_mma_atom(mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, onto)
        for plane_a, plane_b in chain.products:
            slot_a, slot_b = stage * p.planes + plane_a, stage * p.planes + plane_b
            for block in chain.blocks:
                cute.mma_atom_call(
                    atom, total[(None, 0, 0)], r_a[(None, part % parts_m, block, slot_a)],
                    r_b[(None, part // parts_m, block, slot_b)], total[(None, 0, 0)],
                )  # fmt: skip
                atom.set(warpgroup.Field.ACCUMULATE, True)
