"""A product that reads its fp32 left operand once, and splits it in the registers of the warps that multiply (sm_90a).

    A is (M, K, batch) fp32, K contiguous; B is (N, K, batch x 2) planes, each 16 of K in the order below; C and the
    roles of warps are `product`'s

    tile of A          tile_m x 64 of fp32, in four slabs of 16 of K: a row of a slab is 64 bytes
    warps 0, 1         load A and B, each into stages of its own: A's are free as soon as they are in registers
    warpgroups 1, 2    own 64 rows each, in turns: while one multiplies, the other promotes what it has, and splits what
                       comes next; a lane reads quads of two rows (r and r + 8), splits them under the exponents of
                       these rows, and multiplies out of registers, 64 columns after the other

Where A is large and the other side small (a layer of few rows, a deep product), planes of A would be written and read
once more each. What a row's exponent will be nobody knows at its start: it is that of its first 64 of K, with room for
what grows by 2^2, and when an element comes that does not fit it is lowered for all the row, the sums too. So most
steps cost a multiplication, two conversions and a difference an element; a look at the largest and the least of what
was made tells whether more care is needed.

A lane holds K = 4t .. 4t + 3 of 16, and wgmma asks of it 2t, 2t + 1, 2t + 8, 2t + 9: of a sum of products the order is
no matter, so planes of B are laid out in that one (see `pair.permuted`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.pipeline import pipeline_init_arrive, pipeline_init_wait
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ...common.control import when
from ...common.math import both, either
from ..epilogue.epilogue import EpilogueStore, power_of_two
from ..epilogue.expression import TileAt
from ..fp32.pair import QUAD, Scale, SeenMagnitudes, exponent_of, extremes, highest, split_quad, split_soon, unsafe
from ..host.plan import ATOM, DEPTH, Chain, Point
from .k_range import NO_ZEROS, Zeros
from .two_level import promote, scale_back
from .wgmma import TURN, WgmmaProduct

SLAB = ATOM  # of K
SLABS = DEPTH // SLAB
PART = 64  # columns that are multiplied and promoted together
EMPTY = 127  # no row has a larger exponent: the smallest subnormal number, times 2^127, is an fp16
HEADROOM = 2  # binades that a row's largest element may grow by before its exponent changes


class SplitInRegisters(WgmmaProduct):
    """How a lane has A's rows of a stage: split, under exponents that grow with what it meets."""

    def _take(self, s_a: Any, own_rows: list[Any], stage: Any, halves_of_a: list[Any], of_rows: list[Any]) -> None:
        """64 of K of this lane's two rows into registers, split."""
        words = [cute.recast_tensor(half, Int32) for half in halves_of_a]
        highs = []
        for r in range(2):
            for slab, quad in enumerate(self._quads(s_a, own_rows[r], stage)):
                planes = split_soon(quad, of_rows[1][r])
                highs += planes[0]
                self._keep(words, planes, slab, r)
        vanishing, beyond = unsafe(*extremes(highs))
        again = partial(self._look_again, s_a, own_rows, stage, words, of_rows, beyond)
        when(cute.arch.vote_any_sync(either(vanishing, beyond)), again)

    def _keep(self, words: list[Any], planes: list[Any], slab: int, r: int) -> None:
        """A quad's halves where wgmma takes them from."""
        for plane in range(2):
            for pair in range(2):
                words[plane][slab * 4 + pair * 2 + r] = planes[plane][pair]

    def _look_again(
        self, s_a: Any, own_rows: list[Any], stage: Any, words: list[Any], of_rows: Any, beyond: Any
    ) -> None:  # fmt: skip
        """Whether these 64 of K need care; zeros don't."""
        wrong = beyond
        for r in range(2):
            scale = Scale(of_rows[0][r])
            for quad in self._quads(s_a, own_rows[r], stage):
                for e in range(QUAD):
                    wrong = either(wrong, scale.loses(quad[e]))
        careful = partial(self._take_care, s_a, own_rows, stage, words, of_rows)
        when(cute.arch.vote_any_sync(wrong), careful)

    def _take_care(self, s_a: Any, own_rows: list[Any], stage: Any, words: list[Any], of_rows: Any) -> None:
        """The same, whatever these 64 of K are."""
        for r in range(2):
            quads = self._quads(s_a, own_rows[r], stage)
            seen = SeenMagnitudes(1)
            seen.look(quads)
            cute.arch.sync_warp()
            bits = highest(seen.most[0], 4)
            when(both(bits != Int32(0), of_rows[0][r] > exponent_of(bits)), partial(lower, of_rows, r, bits))
            scales = [Scale(of_rows[0][r])] * QUAD
            for slab in range(SLABS):
                self._keep(words, split_quad(quads[slab], scales, seen.odd[0]), slab, r)
        cute.arch.sync_warp()

    def _quads(self, s_a: Any, row: Any, stage: Any) -> list[Any]:
        """What this lane has of a row."""
        lane = cute.arch.lane_idx() % 4
        return [self._quad(s_a, row, lane, stage * SLABS + slab) for slab in range(SLABS)]

    def _quad(self, s_a: Any, row: Any, lane: Any, slot: Any) -> Any:
        held = cute.make_rmem_tensor((QUAD,), Float32)
        start = s_a.iterator + cute.crd2idx((row, lane * QUAD, slot), s_a.layout)
        cute.autovec_copy(cute.make_tensor(start.align(4 * QUAD), cute.make_layout((QUAD,))), held)
        return held

    def _lower(self, total: Any, of_rows: Any) -> None:
        """Sums under their rows' new exponents."""
        for r in range(2):
            half = of_rows[2][r] >> Int32(1)
            factors = power_of_two(half), power_of_two(of_rows[2][r] - half)
            for q in range(self.point.tile_n // 8):
                for e in range(2):
                    total[((e, r, q), 0, 0)] = total[((e, r, q), 0, 0)] * factors[0] * factors[1]
        settle(of_rows)


class Streamed(SplitInRegisters):
    """A Point with `streamed`: A is fp32, B split. Its tensors are A, B, C, the exponents of B's columns, operands."""

    starts_early = False

    def __init__(self, point: Point, finish: EpilogueStore, zeros: Zeros = NO_ZEROS) -> None:
        super().__init__(point, finish, zeros)
        self.scales = 1
        self.stages_a = point.depth_stages + 1

    def __call__(
        self, tensors: tuple[Any, ...], clusters: Any, splits: Any, chunk: Any, stream: Any
    ) -> None:  # fmt: skip
        """Emit the launch."""
        p = self.point
        a, b, c, *more = tensors
        major_b = LayoutEnum.from_tensor(b)
        self.element = b.element_type
        smem_a = cute.make_layout(
            (p.tile_m, SLAB, self.stages_a * SLABS), stride=(SLAB, 1, p.tile_m * SLAB)
        )  # fmt: skip
        tile = (p.tile_m, p.tile_n, DEPTH)
        smem_b = hopper_helpers.make_smem_layout_b(major_b, tile, self.element, p.depth_stages * p.planes)
        mma, of_tile = (
            hopper_helpers.make_trivial_tiled_mma(
                self.element, self.element, cute.nvgpu.OperandMajorMode.K, major_b.sm90_mma_major_mode(), Float32,
                (p.groups, 1, 1), tiler_mn=(64, columns), a_source=warpgroup.OperandSource.RMEM,
            )
            for columns in (PART, p.tile_n)
        )  # fmt: skip
        tma_a, from_a = self._tma(a, smem_a, (p.tile_m, SLAB), 1)
        tma_b, from_b = self._tma(b, smem_b, (p.tile_n, DEPTH), p.cluster_m)

        loads = [tma_a, from_a, tma_b, from_b]
        kernel = self._streamed(loads, c, list(more), [mma, of_tile], [smem_a, smem_b], splits, chunk)
        self._launch(kernel, clusters, stream)

    @cute.kernel
    def _streamed(
        self, loads: list, c: cute.Tensor, more: list, mmas: list, layouts: list, splits: Int32, chunk: Int32
    ) -> None:
        """`loads`: TMA's copy and the tensor of A and of B; `mmas`: of a part of a tile, and of the whole; `layouts`:
        of A's and B's stages."""
        p = self.point
        tma_a, from_a, tma_b, from_b = loads
        mma, of_tile = mmas
        smem_a, smem_b = layouts
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
        at, _, mask_b = self._in_cluster()

        shared = SmemAllocator()
        stages_a = self._stages(
            shared, readers=p.groups * 4, cluster=(1, 1), count=self.stages_a, size=p.tile_m * DEPTH * 4
        )  # fmt: skip
        stages_b = self._stages(
            shared, readers=p.cluster_m * p.groups * 4, cluster=(p.cluster_m, 1), size=p.tile_n * DEPTH * 2 * p.planes
        )  # fmt: skip
        s_a = shared.allocate_tensor(Float32, smem_a, byte_alignment=1024)
        s_b = shared.allocate_tensor(self.element, smem_b.outer, byte_alignment=1024, swizzle=smem_b.inner)
        pipeline_init_arrive(cluster_shape_mn=(p.cluster_m, 1), is_relaxed=True)
        to_a, g_a = self._sides(tma_a, from_a, s_a, (p.tile_m, SLAB))  # slabs of K, and batches
        to_b, g_b = self._sides(tma_b, from_b, s_b, (p.tile_n, DEPTH), at=at[0], together=p.cluster_m)

        group = cute.arch.make_warp_uniform(thread // 128)
        by_group = mma.get_slice(cute.make_layout(p.groups, stride=128)(group - 1))
        r_b = mma.make_fragment_B(by_group.partition_B(s_b))  # (atom, 1, blocks of K, slots)

        m, n, k = cute.size(from_a, mode=[0]), cute.size(from_b, mode=[0]), cute.size(from_a, mode=[1])
        rows = cute.ceil_div(m, p.tile_m * p.cluster_m)
        columns = cute.ceil_div(n, p.tile_n)
        steps = cute.ceil_div(k, DEPTH)
        each = chunk // DEPTH
        first_work = cute.arch.block_idx()[0] // p.cluster
        stride = cute.arch.grid_dim()[0] // p.cluster
        all_work = rows * columns * cute.size(c, mode=[2])

        pipeline_init_wait(cluster_shape_mn=(p.cluster_m, 1))

        if group == 0:
            cute.arch.setmaxregister_decrease(p.registers[0])
            if warp == 0:
                filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages_a)
                work = first_work
                while work < all_work:
                    turn = self._turn(work, stride, all_work)
                    row, column, layer, begin, end = self._steps(turn, rows, columns, splits, each, steps)
                    of_a = self.finish.layer_of(0, layer // splits, from_a)
                    for step in cutlass.range(begin, end, unroll=1):
                        stages_a.producer_acquire(filling)
                        barrier = stages_a.producer_get_barrier(filling)
                        for slab in cutlass.range_constexpr(SLABS):
                            cute.copy(
                                tma_a, g_a[(None, row * p.cluster_m + at[0], step * SLABS + slab, of_a)],
                                to_a[(None, filling.index * SLABS + slab)], tma_bar_ptr=barrier,
                            )  # fmt: skip
                        stages_a.producer_commit(filling)
                        filling.advance()
                    work += stride
                stages_a.producer_tail(filling)
            if warp == 1:
                filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, p.depth_stages)
                work = first_work
                while work < all_work:
                    turn = self._turn(work, stride, all_work)
                    row, column, layer, begin, end = self._steps(turn, rows, columns, splits, each, steps)
                    of_b = self.finish.layer_of(1, layer // splits, from_b, planes=p.planes)
                    for step in cutlass.range(begin, end, unroll=1):
                        stages_b.producer_acquire(filling)
                        barrier = stages_b.producer_get_barrier(filling)
                        for plane in cutlass.range_constexpr(p.planes):
                            cute.copy(
                                tma_b, g_b[(None, column, step, of_b + plane)],
                                to_b[(None, filling.index * p.planes + plane)], tma_bar_ptr=barrier, mcast_mask=mask_b,
                            )  # fmt: skip
                        stages_b.producer_commit(filling)
                        filling.advance()
                    work += stride
                stages_b.producer_tail(filling)
        else:
            cute.arch.setmaxregister_increase(p.registers[1])
            by_thread = of_tile.get_slice(thread - 128)
            places = by_thread.partition_C(cute.make_identity_tensor((p.tile_m, p.tile_n)))
            own_rows = [places[((0, r, 0), 0, 0)][0] for r in range(2)]
            reading_a = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages_a)
            reading_b = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            total = cute.make_rmem_tensor(((2, 2, p.tile_n // 8), 1, 1), Float32)
            waves = [cute.make_rmem_tensor(((2, 2, PART // 8), 1, 1), Float32) for _ in range(p.tile_n // PART)]
            halves_of_a = [cute.make_rmem_tensor(((2, 2, 2), 1, SLABS), self.element) for _ in range(2)]
            of_rows = [cute.make_rmem_tensor((2,), kind) for kind in (Int32, Float32, Int32)]
            work = first_work
            if group == 2:
                cute.arch.barrier_arrive(barrier_id=TURN, number_of_threads=256)
            while work < all_work:
                turn = self._turn(work, stride, all_work)
                row, column, layer, begin, end = self._steps(turn, rows, columns, splits, each, steps)
                total.fill(0.0)
                forget(of_rows)
                if begin < end:
                    stages_a.consumer_wait(reading_a)
                for step in cutlass.range(begin, end, unroll=1):
                    self._take(s_a, own_rows, reading_a.index, halves_of_a, of_rows)
                    stages_a.consumer_release(reading_a)
                    reading_a.advance()
                    when((of_rows[2][0] | of_rows[2][1]) != Int32(0), partial(self._lower, total, of_rows))
                    stages_b.consumer_wait(reading_b)
                    cute.arch.barrier(barrier_id=TURN - 1 + group, number_of_threads=256)
                    ahead = partial(when, step + 1 < end, partial(stages_a.consumer_wait, reading_a))
                    self._start_sum(mma, waves, total, halves_of_a, r_b, reading_b.index, ahead)
                    cute.arch.barrier_arrive(barrier_id=TURN + 2 - group, number_of_threads=256)
                    for part in cutlass.range_constexpr(len(waves)):
                        warpgroup.wait_group(len(waves) - 1 - part)
                        promote(total, waves[part], part)
                    stages_b.consumer_release(reading_b)
                    reading_b.advance()
                at_m = (row * p.cluster_m + at[0]) * p.tile_m
                self.finish.store(
                    total, places[(None, 0, 0)], c, more[self.scales :], ([of_rows[0][0], of_rows[0][1]], more[0]),
                    at=TileAt((at_m, column * p.tile_n, layer), (m, n)),
                )  # fmt: skip
                work += stride

    def _start_sum(
        self, mma: Any, waves: list[Any], total: Any, halves_of_a: list[Any], r_b: Any, stage: Any,
        ahead: Callable[[], None],
    ) -> None:  # fmt: skip
        """The chains of one stage, promoted but for the last, which is on its way; before that is, `ahead()`: later
        ptxas would take registers for it out of which wgmma still reads."""
        cute.arch.sync_warp()  # lanes part where their rows do
        before = None
        for chain in self.chains:
            for part, wave in enumerate(waves):
                fresh = before is None or not before.shift
                if before is not None:
                    warpgroup.wait_group(len(waves) - 1)
                    promote(total, wave, part) if fresh else scale_back(wave, before.shift)
                if chain is self.chains[-1] and wave is waves[-1]:
                    ahead()
                self._multiply(mma, wave, halves_of_a, r_b, chain, stage, fresh=fresh, part=part)
            before = chain

    def _multiply(
        self, mma: Any, wave: Any, halves_of_a: list[Any], r_b: Any, chain: Chain, stage: Any, *, fresh: bool,
        part: int,
    ) -> None:  # fmt: skip
        """One chain over a stage, on its way to `wave`; a `fresh` one forgets what that held."""
        atom = cute.make_mma_atom(mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, not fresh)
        warpgroup.fence()
        for plane_a, plane_b in chain.products:
            for slab in chain.blocks:
                cute.mma_atom_call(
                    atom, wave[(None, 0, 0)], halves_of_a[plane_a][(None, 0, slab)],
                    r_b[(None, part, slab, stage * self.point.planes + plane_b)], wave[(None, 0, 0)],
                )  # fmt: skip
                atom.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()


def forget(of_rows: Any) -> None:
    for r in range(2):
        of_rows[0][r] = Int32(EMPTY)
        of_rows[1][r] = power_of_two(Int32(EMPTY))
    settle(of_rows)


def settle(of_rows: Any) -> None:
    for r in range(2):
        of_rows[2][r] = Int32(0)


def lower(of_rows: Any, r: int, bits: Any) -> None:
    """Another exponent, with room above, for a row of which an element does not fit."""
    exponents, factors, behind = of_rows
    exponent = exponent_of(bits) - Int32(HEADROOM)
    behind[r] = exponent - exponents[r]
    exponents[r] = exponent
    factors[r] = power_of_two(exponent)
