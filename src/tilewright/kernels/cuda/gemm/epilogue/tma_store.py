"""C by way of shared memory: a warpgroup puts 64 rows x 128 bytes of it down, and TMA writes them while it goes on.

    64 rows x 32 columns of fp32 (64 of 16 bits), two buffers a warpgroup; lines of 64 or 32 bytes have half, a quarter

    row r, 16 bytes number b      lie at r x 128 + (b xor r mod 8) x 16: the order of TMA's 128-byte swizzle; of lines
                                  of 64 bytes at r x 64 + (b xor r / 2 mod 4) x 16, of 32 at
                                  r x 32 + (b xor r / 4 mod 2) x 16

Stores of whole lines leave faster than what single lanes write, and nobody waits for them but whoever needs the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Int32, cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ...common.control import when
from ..host.plan import Point

ROWS, BUFFERS = 64, 2
PUT_FOUR = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};"


def copies(c: Any, point: Point) -> tuple[tuple[Any, Any], Any]:
    """TMA's copy of a line to C, its tensor, and the layout of shared memory."""
    line = (ROWS, point.line_bytes * 8 // c.element_type.width)
    buffers = BUFFERS * point.groups * point.turns
    layout = hopper_helpers.make_smem_layout_epi(c.element_type, LayoutEnum.ROW_MAJOR, line, buffers)
    one = cute.slice_(layout, (None, None, 0))
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), c, one, line), layout


class TmaStore:
    """Of one warpgroup, `group` of 1, 2 ..: `staged` and `tiles` are both sides of the TMA store, partitioned."""

    def __init__(
        self, tma: Any, memory: Any, staged: Any, tiles: Any, *, group: Any, width: int, line_bytes: int
    ) -> None:  # fmt: skip
        self.tma, self.staged, self.tiles = tma, staged, tiles
        self.group = group
        self.columns = line_bytes * 8 // width
        self.line_bytes, self._rows_each = line_bytes, 128 // line_bytes  # rows that lie in 128 bytes
        self.bytes_each = width // 8
        self.halves = width == 16  # put as matrices
        self._first = Int32(memory.iterator.toint()) + (group - 1) * (BUFFERS * ROWS * line_bytes)
        self._leads = cute.arch.warp_idx() % 4 == 0

    def open(self) -> None:
        """Before a tile's first: all buffers are free, and all know."""
        self._wait(0)

    def wait(self, turn: int) -> None:
        """The buffer of this turn of an open smem_store is free."""
        if turn >= BUFFERS:
            self._wait(1)

    def _wait(self, pending: int) -> None:
        when(self._leads, lambda: cute.arch.cp_async_bulk_wait_group(pending, read=True))
        cute.arch.barrier(barrier_id=self.group, number_of_threads=128)

    def put(self, turn: int, row: Any, column: Any, words: Sequence[Any]) -> None:
        """Neighbouring elements, as 2 or 4 words; `row` of 64, `column` of a line."""
        byte = column * self.bytes_each
        swizzled = row & 7 if self._rows_each == 1 else row // self._rows_each % (self.line_bytes // 16)
        inside = ((byte >> 4) ^ swizzled) * 16 + (byte & 15)
        address = self._first + (turn % BUFFERS) * (ROWS * self.line_bytes) + row * self.line_bytes + inside
        count = len(words)
        values = ", ".join(f"${i + 1}" for i in range(count))
        llvm.inline_asm(
            None, [Int32(address).ir_value(), *(Int32(w).ir_value() for w in words)],
            f"st.shared.v{count}.b32 [$0], {{{values}}};", ",".join("r" * (count + 1)),
            has_side_effects=True, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT,
        )  # fmt: skip

    def put_matrices(self, turn: int, column: int, words: Sequence[Any]) -> None:
        """Pairs of 16 bits as words, both rows of a pair of columns after the other, from this column of a line on: 16
        columns at a time (stmatrix: see `smem_tile`, of which the order is)."""
        warp, lane = cute.arch.warp_idx() % 4, cute.arch.lane_idx()
        row, second = warp * 16 + (lane & 15), lane >> 4
        swizzled = row // self._rows_each % (self.line_bytes // 16)
        start = self._first + (turn % BUFFERS) * (ROWS * self.line_bytes) + row * self.line_bytes
        for at in range(0, len(words), 4):
            address = start + (((column + 4 * at) // 8 + second) ^ swizzled) * 16
            four = [Int32(word) for word in words[at : at + 4]]
            cute.arch.inline_ptx(PUT_FOUR, read_only_args=[address, *four])

    def send(self, turn: int, tile: tuple[Any, Any, Any]) -> None:
        """What has been put goes to the tile (64 rows, a line of columns, layer) of C; TMA leaves out what is none."""
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(barrier_id=self.group, number_of_threads=128)
        buffer = (self.group - 1) * BUFFERS + turn % BUFFERS

        def store() -> None:
            cute.copy(self.tma, self.staged[(None, buffer)], self.tiles[(None, *tile)])
            cute.arch.cp_async_bulk_commit_group()

        when(self._leads, store)

    def close(self) -> None:
        """Shared memory may go."""
        when(self._leads, lambda: cute.arch.cp_async_bulk_wait_group(0, read=True))
