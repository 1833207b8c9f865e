"""A product for GPUs without TMA and wgmma (sm_80): cp.async, ldmatrix, mma.sync.

    A is (M, K, batch), B is (N, K, batch), both of 16 bits and along K; C is (M, N, batch)

    CTA       tile_m x tile_n of C, four warps, 2 x 2 of them; DEPTH of K a stage, STAGES of them
    stage     rows of 64 bytes, four chunks of 16; chunk q of row r lies at q ^ (r / 2 % 4): no bank is met twice
    warp      parts of 16 rows x tile_n / 2 columns: mma.m16n8k16, fp32 sums

A part's sums lie in registers as a warp's do after wgmma: pairs of neighbouring columns, two rows 8 apart, pairs every
8 columns. So an EpilogueStore ends this tile, too. What lies outside of A and B is read as nought.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.memory import SmemAllocator

from ...common.control import when
from ..epilogue.epilogue import EpilogueStore
from ..epilogue.expression import TileAt
from ..host.plan import Point

DEPTH = 32  # of K a stage
STAGES = 4
THREADS = 128
_CHUNK = 8  # elements of 16 bytes
_CHUNKS = DEPTH // _CHUNK


def shared_bytes(point: Point) -> int:
    """Of all stages."""
    return STAGES * (point.tile_m + point.tile_n) * DEPTH * 2


def takes(point: Point) -> bool:
    """Whether this kernel has such a Point: of the knobs the tile alone counts, and K is whole."""
    return point.scheme == "plain" and point.split_k == 1 and {point.tile_m, point.tile_n} <= {64, 128}


class _Places:
    """Where the elements of a part lie in the tile, as a tensor of coordinates has it."""

    def __init__(self, row: Any, column: Any) -> None:
        self._row, self._column = row, column

    def __getitem__(self, place: Any) -> tuple[Any, Any]:
        ((e, r, q),) = place
        return self._row + 8 * r, self._column + 8 * q + e


class Ampere:
    """A Point for operands of one type, ready to be traced inside a `@cute.jit` entry point."""

    def __init__(self, point: Point, finish: EpilogueStore) -> None:
        if not takes(point):
            raise ValueError("without TMA products are plain, of 16 bits, in tiles of 64 or 128, with K whole")
        self.point = point
        self.finish = finish
        self.parts = point.tile_m // 32  # of a warp, 16 rows each
        self.pairs = point.tile_n // 16  # of a warp, 8 columns each

    def __call__(
        self, tensors: tuple[Any, ...], clusters: Any, splits: Any, chunk: Any, stream: Any
    ) -> None:  # fmt: skip
        """Emit the launch. `tensors`: A, B, C, the epilogue's operands."""
        a, b, c, *operands = tensors
        self.element = a.element_type
        self.kind = "bf16" if self.element is cutlass.BFloat16 else "f16"
        m, n = cute.size(a, mode=[0]), cute.size(b, mode=[0])
        tiles = cute.ceil_div(m, self.point.tile_m) * cute.ceil_div(n, self.point.tile_n)
        self._kernel(a, b, c, list(operands)).launch(
            grid=[tiles, cute.size(c, mode=[2]), 1], block=[THREADS, 1, 1], stream=stream
        )

    @cute.kernel
    def _kernel(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, operands: list) -> None:
        p = self.point
        self.thread = cute.arch.thread_idx()[0]
        block, layer, _ = cute.arch.block_idx()
        m, n, k = cute.size(a, mode=[0]), cute.size(b, mode=[0]), cute.size(a, mode=[1])
        tall = cute.ceil_div(m, p.tile_m)
        top, left = block % tall * p.tile_m, block // tall * p.tile_n
        steps = cute.ceil_div(k, DEPTH)

        shared = SmemAllocator()
        s_a = shared.allocate_tensor(self.element, cute.make_layout((STAGES * p.tile_m * DEPTH,)), byte_alignment=128)
        s_b = shared.allocate_tensor(self.element, cute.make_layout((STAGES * p.tile_n * DEPTH,)), byte_alignment=128)

        of_a, of_b = (self.finish.layer_of(side, layer, x) for side, x in enumerate((a, b)))
        sides = ((a, s_a, top, m, p.tile_m, of_a), (b, s_b, left, n, p.tile_n, of_b))
        lane, warp = self.thread % 32, self.thread // 32
        row, column = warp // 2 * (p.tile_m // 2), warp % 2 * (p.tile_n // 2)
        sums = [cute.make_rmem_tensor(cute.make_layout(((2, 2, self.pairs), 1, 1)), Float32) for _ in range(self.parts)]
        for part in cutlass.range_constexpr(self.parts):
            sums[part].fill(0.0)
        for stage in cutlass.range_constexpr(STAGES - 1):
            when(steps > stage, partial(self._fill, sides, Int32(stage), k))
            cute.arch.cp_async_commit_group()
        for step in cutlass.range(steps, unroll=1):
            cute.arch.cp_async_wait_group(STAGES - 2)
            cute.arch.sync_threads()
            when(step + (STAGES - 1) < steps, partial(self._fill, sides, step + (STAGES - 1), k))
            cute.arch.cp_async_commit_group()
            self._multiply(s_a, s_b, sums, (row, column), step % STAGES, lane)
        cute.arch.cp_async_wait_group(0)
        for part in cutlass.range_constexpr(self.parts):
            places = _Places(row + 16 * part + lane // 4, column + lane % 4 * 2)
            self.finish.store(
                sums[part], places, c, operands, (), at=TileAt((top, left, layer), (m, n)), block=p.block
            )  # fmt: skip

    def _fill(self, sides: tuple[tuple[Any, ...], ...], step: Any, k: Any) -> None:
        for x, staged, first, size, rows, layer in sides:
            self._fetch(x, staged, (first, step, layer), (size, k), rows=rows)

    def _fetch(
        self, x: Any, staged: Any, at: tuple[Any, Any, Any], sizes: tuple[Any, Any], *, rows: int
    ) -> None:  # fmt: skip
        """A stage of one operand is on its way: 16 bytes a copy, nought behind the last row and the last of K."""
        first, step, layer = at
        for turn in range(rows * _CHUNKS // THREADS):
            number = turn * THREADS + self.thread
            row, chunk = number // _CHUNKS, number % _CHUNKS
            begin = step * DEPTH + chunk * _CHUNK
            left = cutlass.max(cutlass.min(sizes[1] - begin, Int32(_CHUNK)), Int32(0))
            inside = cutlass.min(first + row, sizes[0] - 1)
            bytes_there = left * 2 * Int32(first + row < sizes[0])
            whole = cutlass.min(begin, (sizes[1] - 1) // _CHUNK * _CHUNK)  # what is not read is aligned, too
            start = x.iterator + cute.crd2idx((inside, whole, layer), x.layout)
            place = self._place(step % STAGES, row, chunk, rows=rows)
            cute.arch.inline_ptx(
                "cp.async.cg.shared.global [{$r0}], [{$r1}], 16, {$r2};",
                read_only_args=[Int32((staged.iterator + place).toint()), start.toint(), bytes_there],
            )

    @staticmethod
    def _place(stage: Any, row: Any, chunk: Any, *, rows: int) -> Any:
        return (stage * rows + row) * DEPTH + (chunk ^ (row // 2 % 4)) * _CHUNK

    def _matrices(self, staged: Any, place: Any) -> tuple[Any, ...]:
        """Four matrices of 8 x 8, whose rows the lanes name by eight."""
        text = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];"
        args = [Int32((staged.iterator + place).toint())]
        found: tuple[Any, ...] = cute.arch.inline_ptx(text, write_only_types=[Int32] * 4, read_only_args=args)
        return found

    def _multiply(
        self, s_a: Any, s_b: Any, sums: list[Any], corner: tuple[Any, Any], stage: Any, lane: Any
    ) -> None:  # fmt: skip
        """A stage: of every 16 of K the warp's parts times its columns."""
        p = self.point
        for half in range(DEPTH // 16):
            rows = [corner[0] + 16 * part + lane % 16 for part in range(self.parts)]
            mine = [self._matrices(s_a, self._place(stage, row, half * 2 + lane // 16, rows=p.tile_m)) for row in rows]
            for two in range(self.pairs // 2):
                column = corner[1] + 16 * two + lane % 8 + lane // 16 * 8
                theirs = self._matrices(s_b, self._place(stage, column, half * 2 + lane // 8 % 2, rows=p.tile_n))
                for part, of_part in enumerate(mine):
                    for e in range(2):
                        self._mma(sums[part], 2 * two + e, of_part, theirs[2 * e : 2 * e + 2])

    def _mma(self, total: Any, pair: int, left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
        text = (
            f"mma.sync.aligned.m16n8k16.row.col.f32.{self.kind}.{self.kind}.f32 "
            "{{$w0}, {$w1}, {$w2}, {$w3}}, {{$r0}, {$r1}, {$r2}, {$r3}}, {{$r4}, {$r5}}, "
            "{{$r6}, {$r7}, {$r8}, {$r9}};"
        )
        places = [((e, r, pair), 0, 0) for r in range(2) for e in range(2)]
        args = [*left, *right, *(total[place] for place in places)]
        made = cute.arch.inline_ptx(text, write_only_types=[Float32] * 4, read_only_args=args)
        for place, value in zip(places, made, strict=True):
            total[place] = value
