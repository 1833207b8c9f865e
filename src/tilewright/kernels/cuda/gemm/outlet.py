"""C by way of shared memory: a warpgroup puts 64 rows x 128 bytes of it down, and TMA writes them while it goes on.

    64 rows x 32 columns of fp32 (64 of 16 bits), two buffers a warpgroup

    row r, 16 bytes number b      lie at r x 128 + (b xor r mod 8) x 16: the order of TMA's 128-byte swizzle

Stores of whole lines leave faster than what single lanes write, and nobody waits for them but whoever needs the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Int32, cute
from cutlass._mlir.dialects import llvm

from ..control import when
from .plan import OUTLET_BYTES

ROWS, LINE_BYTES, BUFFERS = 64, 128, 2


class Outlet:
    """Of one warpgroup, `group` of 1, 2 ..: `staged` and `tiles` are both sides of the TMA store, partitioned."""

    def __init__(self, tma: Any, memory: Any, staged: Any, tiles: Any, *, group: Any, width: int) -> None:
        self.tma, self.staged, self.tiles = tma, staged, tiles
        self.group = group
        self.columns = LINE_BYTES * 8 // width
        self.bytes_each = width // 8
        self._first = Int32(memory.iterator.toint()) + (group - 1) * OUTLET_BYTES
        self._leads = cute.arch.warp_idx() % 4 == 0

    def wait(self, turn: int, *, last: bool) -> None:
        """The buffer of this turn is free; `last`: the one before was the same."""
        pending = 0 if last else 1
        when(self._leads, lambda: cute.arch.cp_async_bulk_wait_group(pending, read=True))
        cute.arch.barrier(barrier_id=self.group, number_of_threads=128)

    def put(self, turn: int, row: Any, column: Any, words: Sequence[Any]) -> None:
        """Neighbouring elements, as 2 or 4 words; `row` of 64, `column` of a line."""
        byte = column * self.bytes_each
        inside = ((byte >> 4) ^ (row & 7)) * 16 + (byte & 15)
        address = self._first + (turn % BUFFERS) * (ROWS * LINE_BYTES) + row * LINE_BYTES + inside
        count = len(words)
        values = ", ".join(f"${i + 1}" for i in range(count))
        llvm.inline_asm(
            None, [Int32(address).ir_value(), *(Int32(w).ir_value() for w in words)],
            f"st.shared.v{count}.b32 [$0], {{{values}}};", ",".join("r" * (count + 1)),
            has_side_effects=True, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT,
        )  # fmt: skip

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
