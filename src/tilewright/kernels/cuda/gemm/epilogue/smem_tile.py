"""A whole tile of C in shared memory: a matrix that the epilogue reads comes there by TMA while the tile is multiplied,
what is made of it takes its place, and leaves by TMA.

    a warpgroup's rows of the tile, 64 at a time, in lines of 64 columns of 16 bits: 64 x 128 bytes a line

    row r, 16 bytes number b      lie at r x 128 + (b xor r mod 8) x 16: the order of TMA's 128-byte swizzle

A warp has 16 rows of each line. Its 8 x 8 matrices are read and written four at a time (ldmatrix, stmatrix), which
puts the pairs of neighbours into the lanes that have wgmma's sums of the same places:

    columns          8 q ..    8 q + 8 ..
    rows 0 .. 7      0         2
    rows 8 .. 15     1         3

Addresses of a lane differ by an exclusive or with 16 q and by whole lines, and no two lanes meet in a bank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from ...common import math as m
from ...common.control import when
from ..host.plan import Point
from .tma_store import PUT_FOUR, ROWS

COLUMNS = 64  # of a line, as many as rows
LINE_BYTES = ROWS * 128
PAIRS = COLUMNS // 8  # of neighbours along a line, that a lane has in a row
_SIDES = (ROWS, COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """What a launch knows of it. `kind`: C's type; `matrix`: the epilogue's operand `name`, if one comes staged;
    `layered`: each layer has a matrix of it."""

    point: Point
    kind: Any
    matrix: Any
    name: str
    layered: bool

    @classmethod
    def of(cls, point: Point, finish: Any, c: Any, operands: Sequence[Any]) -> Staging | None:
        """None where C is not of 16 bits, or its rows start where TMA can't write them."""
        if c.element_type.width != 16 or finish.vector < 8:
            return None
        number = finish.comes_staged(operands, c.element_type)
        if number is None:
            return cls(point=point, kind=c.element_type, matrix=None, name="", layered=False)
        x = operands[number]
        layered = not (isinstance(x.stride[2], int) and x.stride[2] == 0)
        strides = (x.stride[0], 1, x.stride[2] if layered else x.stride[0])
        matrix = cute.make_tensor(x.iterator, cute.make_layout(x.shape, stride=strides))
        name = finish.names[number]
        return cls(point=point, kind=c.element_type, matrix=matrix, name=name, layered=layered)

    def copies(self, c: Any) -> tuple[Any, Any, Any]:
        """TMA's copies of a line to C and from the matrix, each with its tensor, and the layout of shared memory."""
        lines = self.point.smem_store_bytes // LINE_BYTES
        layout = hopper_helpers.make_smem_layout_epi(c.element_type, LayoutEnum.ROW_MAJOR, _SIDES, lines)
        line = cute.slice_(layout, (None, None, 0))
        out = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), c, line, _SIDES)
        if self.matrix is None:
            return out, out, layout
        return out, cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), self.matrix, line, _SIDES), layout

    def place(self, shared: Any, group: Any, layout: Any, *, out: tuple[Any, Any], came: tuple[Any, Any]) -> SmemTile:
        """In a kernel: the memory of warpgroup `group` (1, 2 ..), and barriers, which are to be fenced with those of
        the loads."""
        p = self.point
        memory = shared.allocate_tensor(self.kind, layout.outer, byte_alignment=1024, swizzle=layout.inner)
        coming = None
        if self.matrix is not None:
            barriers = shared.allocate_array(cutlass.Int64, p.groups * p.turns)

            def begin() -> None:
                for i in range(p.groups * p.turns):
                    cute.arch.mbarrier_init(barriers + i, 1)

            when(cute.arch.thread_idx()[0] == 0, begin)
            coming = (came[0], *_sides(*came, memory), barriers + (group - 1))
        return SmemTile(
            self, memory=memory, group=group, leaving=(out[0], *_sides(*out, memory)), coming=coming
        )  # fmt: skip


def _sides(copy: Any, tensor: Any, memory: Any) -> tuple[Any, Any]:
    """(bytes of a line, buffer) of shared memory, and (the same bytes, row, column, layer of lines) of the tensor."""
    made: tuple[Any, Any] = cpasync.tma_partition(
        copy, 0, cute.make_layout(1), cute.group_modes(memory, 0, 2),
        cute.group_modes(cute.local_tile(tensor, _SIDES, (None, None, None)), 0, 2),
    )  # fmt: skip
    return made


class SmemTile:
    """Of one warpgroup: `parts` of 64 rows, and `lines` of each."""

    def __init__(
        self, staging: Staging, *, memory: Any, group: Any, leaving: tuple[Any, Any, Any], coming: Any
    ) -> None:
        """`leaving`: TMA's copy, and both sides of it; `coming`: the same, and the barrier that says that it came."""
        p = staging.point
        self.name, self.layered = staging.name, staging.layered
        self.element = memory.element_type
        self.parts, self.lines, self.apart = p.tile_m // (ROWS * p.groups), p.columns // COLUMNS, p.groups
        self.leaving, self.coming = leaving, coming
        self._each = self.parts * self.lines
        self._buffer = (group - 1) * self._each
        self._barrier_id = group
        self._leads = cute.arch.warp_idx() % 4 == 0
        lane = cute.arch.lane_idx()
        row = cute.arch.warp_idx() % 4 * 16 + (lane & 15)
        chunk = (lane >> 4) ^ (lane & 7)
        self._mine = Int32(memory.iterator.toint()) + self._buffer * LINE_BYTES + row * 128 + chunk * 16
        self._first: Any = None

    def turn_to(self, corner: tuple[Any, Any, Any], member: Any) -> None:
        """The tile at `corner` is next. `member`: of the warpgroups that share the tile."""
        self._first = (corner[0] // ROWS + member, corner[1] // COLUMNS, corner[2])

    def open(self) -> None:
        """What was put before has left; what comes for this tile is asked for."""
        when(self._leads, lambda: cute.arch.cp_async_bulk_wait_group(0, read=True))
        if self.coming is None:
            return
        copy, staged, tiles, barrier = self.coming
        expected = self._each * LINE_BYTES
        first = m.both(self._leads, cute.arch.lane_idx() == 0)
        when(first, lambda: cute.arch.mbarrier_arrive_and_expect_tx(barrier, expected))

        def fetch() -> None:
            for number in range(self.parts):
                for line in range(self.lines):
                    row, column, layer = self._place(number, line)
                    place = (row, column, layer if self.layered else 0)
                    buffer = self._buffer + number * self.lines + line
                    cute.copy(copy, tiles[(None, *place)], staged[(None, buffer)], tma_bar_ptr=barrier)

        when(self._leads, fetch)

    def _place(self, number: int, line: int) -> tuple[Any, Any, Any]:
        row, column, layer = self._first
        return row + number * self.apart, column + line, layer

    def ready(self, phase: Any) -> None:
        """What was asked for is there, or may be overwritten. `phase`: tiles before this one, modulo 2."""
        if self.coming is None:
            cute.arch.barrier(barrier_id=self._barrier_id, number_of_threads=128)
        else:
            cute.arch.mbarrier_wait(self.coming[3], phase)

    def _address(self, number: int, line: int, q: int) -> Any:
        return (self._mine ^ Int32(q * 16)) + Int32((number * self.lines + line) * LINE_BYTES)

    def take(self, number: int, line: int) -> list[Any]:
        """The pairs of a line that this lane has, as words: of q = 0, 1 .. both rows."""
        text = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];"
        found: list[Any] = []
        for q in range(0, PAIRS, 2):
            args = [self._address(number, line, q)]
            found += cute.arch.inline_ptx(text, write_only_types=[Int32] * 4, read_only_args=args)
        return found

    def put(self, number: int, line: int, words: Sequence[Any]) -> None:
        """The same pairs of the result."""
        for q in range(0, PAIRS, 2):
            four = [Int32(word) for word in words[2 * q : 2 * q + 4]]
            cute.arch.inline_ptx(PUT_FOUR, read_only_args=[self._address(number, line, q), *four])

    def send(self, number: int, line: int) -> None:
        """A line that all have put goes to C; TMA leaves out what is none."""
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(barrier_id=self._barrier_id, number_of_threads=128)
        copy, staged, tiles = self.leaving

        def store() -> None:
            buffer = self._buffer + number * self.lines + line
            cute.copy(copy, staged[(None, buffer)], tiles[(None, *self._place(number, line))])
            cute.arch.cp_async_bulk_commit_group()

        when(self._leads, store)

    def close(self) -> None:
        """Shared memory may go."""
        when(self._leads, lambda: cute.arch.cp_async_bulk_wait_group(0, read=True))
