"""A small_m product whose large matrix has eight bits an element: it comes as it is, and is made 16 bits in registers
of the warps that multiply it (sm_90a).

    A is (M, K, batch) of int8, uint8 or float8, K contiguous; B is (N, K, batch) of bf16 or fp16, N some 1 to 64;
    factors are what a prologue reads of A's rows beside A, zero points and scales: (M, groups of K, batch) each, the
    groups one, or of 32, 64 or whole stages; C as `small_m`'s

    stage            A: tile_m rows of 128 bytes, 128 of K; B: tile_n rows of as many elements
    last warp        TMA of both
    warpgroups       own 64 rows each: a lane takes pairs of neighbours of two rows (r and r + 8), as wgmma asks for
                     them, makes each element of the prologue's expression in fp32, rounds it once, and multiplies out
                     of registers

    a row's bytes    0 1 | 2 3 | 4 5 | 6 7 | 8 9 | .. of 16 of K
    of lane % 4      0     1     2     3     0

So of what a step of decoding reads half is left. Sums over K go through a cluster, as `small_m`'s do.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import warpgroup
from cutlass.pipeline import pipeline_init_wait
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ...common import math as m
from ...common.spec import ArraySpec, reads
from ..epilogue.epilogue import EpilogueStore
from ..host.plan import ATOM, Point
from ..prologue.fused import PrologueSpec
from .small_m import SmallM

LINE = 128  # bytes of a row in a stage, and so many of K
SLABS = LINE // ATOM
EACH = 2  # slabs that are made, and multiplied, at once
# A byte as the last of 2^23's bits is that number more, exactly; conversions of integers are slow (docs/measured.md).
_WHOLE = (
    "{ .reg .b32 t, l, h; .reg .f32 a, b; xor.b32 t, {$r0}, %s; prmt.b32 l, t, 0x4B000000, 0x7540; "
    "prmt.b32 h, t, 0x4B000000, 0x7541; mov.b32 a, l; mov.b32 b, h; sub.rn.f32 {$w0}, a, %s; sub.rn.f32 {$w1}, b, %s; }"
)
_NARROW = (
    "{ .reg .b16 s, l, h; .reg .b32 p; cvt.u16.u32 s, {$r0}; cvt.rn.f16x2.e4m3x2 p, s; mov.b32 {l, h}, p; "
    "cvt.f32.f16 {$w0}, l; cvt.f32.f16 {$w1}, h; }"
)
EIGHT_BITS = {
    "i8": _WHOLE % ("0x8080", "0f4B000080", "0f4B000080"),  # 128 more, and 2^23 + 128 less
    "u8": _WHOLE % ("0", "0f4B000000", "0f4B000000"),
    "float8_e4m3fn": _NARROW,
}


def _bytes(address: Any) -> Int32:
    """Two neighbours in shared memory, the second in bits 8 to 15."""
    text = "{ .reg .b16 t; ld.shared.u16 t, [{$r0}]; cvt.u32.u16 {$w0}, t; }"
    return Int32(cute.arch.inline_ptx(text, write_only_types=[Int32], read_only_args=[Int32(address)]))


def _floats(pair: Any, dtype: str) -> list[Float32]:
    """Both numbers, exactly."""
    found = cute.arch.inline_ptx(EIGHT_BITS[dtype], write_only_types=[Float32, Float32], read_only_args=[pair])
    return [Float32(x) for x in found]


def _word(low: Any, high: Any, kind: str) -> Int32:
    """Two fp32 numbers, rounded to a pair of `kind`."""
    text = f"cvt.rn.{kind}x2.f32 {{$w0}}, {{$r1}}, {{$r0}};"
    return Int32(cute.arch.inline_ptx(text, write_only_types=[Int32], read_only_args=[Float32(low), Float32(high)]))


class MixedInputProduct(SmallM):
    """A Point of scheme `mixed_input`: its tensors are A, B, C, the factors in the prologue's order, and the epilogue's
    operands. `kind`: of B, "bf16" or "f16"."""

    def __init__(self, point: Point, finish: EpilogueStore, prologue: PrologueSpec, kind: str) -> None:
        super().__init__(point, finish)
        self.prologue = prologue
        self.kind = kind
        self.matrix = matrix_of(prologue)

    def __call__(
        self, tensors: tuple[Any, ...], clusters: Any, splits: Any, chunk: Any, stream: Any
    ) -> None:  # fmt: skip
        """Emit the launch; `clusters`: tiles of C, `chunk`: K of a CTA."""
        p = self.point
        a, b, c, *more = tensors
        major_b = LayoutEnum.from_tensor(b)
        self.element, self.narrow = b.element_type, a.element_type
        self.smem_store = None
        tile = (p.tile_m, p.tile_n, p.depth)
        smem_a = hopper_helpers.make_smem_layout_a(LayoutEnum.from_tensor(a), tile, a.element_type, p.depth_stages)
        smem_b = hopper_helpers.make_smem_layout_b(major_b, tile, self.element, p.depth_stages)
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.element, self.element, cute.nvgpu.OperandMajorMode.K, major_b.sm90_mma_major_mode(), Float32,
            (p.groups, 1, 1), tiler_mn=(64, p.tile_n), a_source=warpgroup.OperandSource.RMEM,
        )  # fmt: skip
        tma_a, from_a = self._tma(a, smem_a, (p.tile_m, p.depth), 1)
        tma_b, from_b = self._tma(b, smem_b, (p.tile_n, p.depth), 1)
        kernel = self._mixed([tma_a, from_a, tma_b, from_b], c, list(more), mma, [smem_a, smem_b], chunk)
        self._launch(kernel, clusters, stream)

    @cute.kernel
    def _mixed(self, loads: list, c: cute.Tensor, more: list, mma: cute.TiledMma, layouts: list, chunk: Int32) -> None:
        """`loads`: TMA's copy and the tensor of A and of B; `layouts`: of their stages."""
        p = self.point
        tma_a, from_a, tma_b, from_b = loads
        smem_a, smem_b = layouts
        thread, _, _ = cute.arch.thread_idx()
        warp, rank, shares, stages, s_a, s_b = self._head(
            thread, (tma_a, tma_b), (self.narrow, self.element), (smem_a, smem_b)
        )  # fmt: skip
        to_a, g_a = self._sides(tma_a, from_a, s_a, (p.tile_m, p.depth))
        to_b, g_b = self._sides(tma_b, from_b, s_b, (p.tile_n, p.depth))
        rows_of_c, n = cute.size(from_a, mode=[0]), cute.size(from_b, mode=[0])
        row, column, layer, begin, end = self._own((rows_of_c, n), cute.size(from_a, mode=[1]), rank, chunk)
        of_a, of_b = (self.finish.layer_of(side, layer, x) for side, x in enumerate((from_a, from_b)))
        board = Int32(s_a.iterator.toint())

        pipeline_init_wait(cluster_shape_mn=(p.cluster, 1))

        if warp == p.groups * 4:
            filling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, p.depth_stages)
            for step in cutlass.range(begin, end, unroll=1):
                stages.producer_acquire(filling)
                barrier = stages.producer_get_barrier(filling)
                cute.copy(tma_a, g_a[(None, row, step, of_a)], to_a[(None, filling.index)], tma_bar_ptr=barrier)
                cute.copy(tma_b, g_b[(None, column, step, of_b)], to_b[(None, filling.index)], tma_bar_ptr=barrier)
                stages.producer_commit(filling)
                filling.advance()
            stages.producer_tail(filling)
        else:
            group = cute.arch.make_warp_uniform(thread // 128)
            by_group = mma.get_slice(cute.make_layout(p.groups, stride=128)(group))
            r_b = mma.make_fragment_B(by_group.partition_B(s_b))  # (atom, 1, slabs, slots)
            places = mma.get_slice(thread).partition_C(cute.make_identity_tensor((p.tile_m, p.tile_n)))
            own = places[((0, 0, 0), 0, 0)][0]  # and the row 8 below
            mine = [m.smaller(row * p.tile_m + own + 8 * r, rows_of_c - 1) for r in range(2)]
            beside = [self._of_row(more, mine[r], of_a) for r in range(2)]
            start = board + own * LINE + thread % 4 * 2
            turn = own % 8  # of the lines of 16 bytes, as the swizzle has it
            reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, p.depth_stages)
            total = cute.make_rmem_tensor(cute.make_layout(((2, 2, p.tile_n // 8), 1, 1)), Float32)
            total.fill(0.0)
            made = [cute.make_rmem_tensor(((2, 2, 2), 1, EACH), self.element) for _ in range(SLABS // EACH)]
            atom = cute.make_mma_atom(mma.op)
            atom.set(warpgroup.Field.ACCUMULATE, True)
            for step in cutlass.range(begin, end, unroll=1):
                of_groups = [self._of_groups(more, mine[r], step, of_a) for r in range(2)]  # on its way meanwhile
                stages.consumer_wait(reading)
                lines = start + reading.index * (p.tile_m * LINE)
                for part in cutlass.range_constexpr(SLABS // EACH):  # the next is made while this one is multiplied
                    self._make(made[part], lines, turn, beside, of_groups, part * EACH)
                    warpgroup.fence()
                    for slab in cutlass.range_constexpr(EACH):
                        cute.mma_atom_call(
                            atom, total[(None, 0, 0)], made[part][(None, 0, slab)],
                            r_b[(None, 0, part * EACH + slab, reading.index)], total[(None, 0, 0)],
                        )  # fmt: skip
                    warpgroup.commit_group()
                warpgroup.wait_group(0)  # beyond a stage ptxas would wait for every wgmma
                stages.consumer_release(reading)
                reading.advance()
            epilogue = more[len(self.prologue.operands) - 1 :]
            tile, sizes = (row, column, layer), (rows_of_c, n)
            self._end([total], shares, (rank, thread), places[(None, 0, 0)], c, epilogue, tile, sizes)

    def _of_row(self, factors: list[Any], row: Any, batch: Any) -> dict[str, Any]:
        """What the prologue reads of a row for all of K."""
        whole = ((o, t) for o, t in zip(self._factors(), factors, strict=False) if not self._in_groups(o))
        return {o.name: m.cast(tensor[(row, 0, batch % cute.size(tensor, mode=[2]))], o.dtype) for o, tensor in whole}

    def _of_groups(self, factors: list[Any], row: Any, step: Any, batch: Any) -> list[dict[str, Any]]:
        """What it reads of a row for each of a stage's groups of K."""
        parted = [(o, t) for o, t in zip(self._factors(), factors, strict=False) if self._in_groups(o)]
        wide = self._group()
        first = step * (LINE // wide) if wide < LINE else step // (wide // LINE)
        return [
            {o.name: m.cast(t[(row, first + i, batch % cute.size(t, mode=[2]))], o.dtype) for o, t in parted}
            for i in range(max(LINE // wide, 1))
        ]  # fmt: skip

    def _factors(self) -> list[ArraySpec]:
        return [o for i, o in enumerate(self.prologue.operands) if i != self.matrix]

    def _group(self) -> int:
        """Of K; a stage where there are no groups."""
        shape = self.prologue.operands[self.matrix].shape
        return LINE if len(shape) == 2 else shape[1 if self.prologue.side == "right" else 2]

    def _in_groups(self, factor: ArraySpec) -> bool:
        """Whether there is one for each group."""
        return len(factor.shape) > 2 and factor.shape[0 if self.prologue.side == "right" else 1] > 1

    def _make(
        self, made: Any, start: Any, turn: Any, beside: list[dict[str, Any]], of_groups: list[list[dict[str, Any]]],
        first: int,
    ) -> None:  # fmt: skip
        """Slabs of a stage from the `first` on: this lane's two rows, in the order in which wgmma has them."""
        words = cute.recast_tensor(made, Int32)
        own = self.prologue.operands[self.matrix]
        names = reads(self.prologue.final)
        lines = [start + ((turn ^ Int32(first + slab)) << Int32(4)) for slab in range(EACH)]
        spots = [(slab, pair, r) for slab in range(EACH) for pair in range(2) for r in range(2)]
        taken = [_bytes(lines[slab] + (pair * 8 + r * 8 * LINE)) for slab, pair, r in spots]
        for (slab, pair, r), two in zip(spots, taken, strict=True):
            group = of_groups[r][(first + slab) * len(of_groups[r]) // SLABS]
            given = [beside[r] | group | {own.name: x} for x in _floats(two, own.dtype)]
            values = [m.cast(self.prologue.final(**{n: known[n] for n in names}), "f32") for known in given]
            words[slab * 4 + pair * 2 + r] = _word(values[0], values[1], self.kind)


def matrix_of(prologue: PrologueSpec) -> int:
    """Which of its operands is the matrix of eight bits."""
    (found,) = [i for i, o in enumerate(prologue.operands) if o.dtype in EIGHT_BITS and min(o.shape[-2:]) > 1]
    return found
