"""A CTA that takes one tile of a pointwise space: what lies across the lanes goes through shared memory.

    global, along the mode          registers               shared, along the lanes        global, along the lanes
    vector x `dense` elements  ->   micro block, turned ->  `dense` chunks of a vector ->  a vector of every tensor

All loads of a tile, turned or not, are issued before the first is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import cutlass
from cutlass import Int32, Uint8, cute

from ..common import math as m
from ..common.addresses import Addresses, coordinates
from ..common.control import when
from ..common.spec import Function, reads
from .cta import Block, Cta
from .plan import Plan
from .tiling import Tile, Transposed


class TileAddresses(Addresses):
    """Offsets within one tile: a step is a pair (row of the tile, chunk of that row)."""

    def __init__(self, plan: Plan, tile: Tile, tensors: dict[str, Any], index: Any) -> None:
        super().__init__(plan.space, tensors, Int32(0), wide=plan.wide)
        self.tile = tile
        *others, row, column = coordinates(index, tile.grid)
        self.row, self.lane = row * tile.rows, column * tile.width
        place = list(others)
        place.insert(tile.mode, self.row)
        for name, view in self.space.views.items():
            start = self._dot(place, view.step_strides[:-1])
            self.base[name] = start + self.kind(self.lane) * self.kind(view.lane_stride)

    def at_point(self, name: str, row: Any, lane: Any) -> Any:
        """Offset of a point of the tile."""
        view = self.space.views[name]
        return self.base[name] + self._dot([row, lane], (view.step_strides[self.tile.mode], view.lane_stride))

    def at_step(self, name: str, step: Any) -> Any:
        row, chunk = step
        return self.at_point(name, row, chunk * self.space.vector)


class TileCta(Cta):
    """`_write_elements` of a pointwise space, over the one block that is this CTA's tile."""

    def _addresses(self) -> Addresses:
        assert self.plan.tile is not None
        self.tile = self.plan.tile
        return TileAddresses(self.plan, self.tile, self.tensors, self.chunk)

    def _allocate(self) -> None:
        super()._allocate()
        self.shared = {}
        for transposed in self.tile.transposed:
            layout = cute.make_layout((transposed.pitch * self.space.vector * self.tile.rows,))
            kind = self._kind(transposed)
            self.shared[transposed.name] = self.allocator.allocate_tensor(kind, layout, byte_alignment=16)

    def _kind(self, transposed: Transposed) -> Any:
        kind = self.tensors[transposed.name].element_type
        return Uint8 if self.dtypes[transposed.name] == "bool" else kind

    # ---- places ----------------------------------------------------------------------------------------------------

    def _left(self) -> tuple[Any, Any]:
        """Rows and lanes from the tile's corner to the ends of the modes; None where all tiles are whole."""
        at, space = self.at, self.space
        assert isinstance(at, TileAddresses)
        rows, lanes = space.step_sizes[self.tile.mode], space.step_sizes[-1] * space.vector
        return (
            Int32(rows) - at.row if rows % self.tile.rows else None,
            Int32(lanes) - at.lane if lanes % self.tile.width else None,
        )

    def _turns(self, count: int) -> list[tuple[Any, Any]]:
        """This thread's share of `count` items: each with the condition under which it is one (None: always)."""
        threads = self.plan.threads
        found = []
        for turn in range(-(-count // threads)):
            item = self.member + turn * threads
            found.append((item, None if (turn + 1) * threads <= count else item < count))
        return found

    def _walk(self, sweep: int, body: Callable[[Block], None]) -> None:
        tile, vector = self.tile, self.space.vector
        rows_left, lanes_left = self._left()
        steps: list[Any] = []
        valid: list[list[Any] | None] = []
        count = tile.rows * tile.chunks
        for item, there in self._turns(count):
            nearest = item if there is None else cutlass.min(item, Int32(count - 1))
            row, chunk = nearest // tile.chunks, nearest % tile.chunks
            conditions = [] if there is None else [there]
            if rows_left is not None:
                conditions.append(row < rows_left)
                row = cutlass.min(row, rows_left - 1)
            if lanes_left is not None:
                conditions.append(chunk * vector < lanes_left)
                chunk = cutlass.min(chunk, lanes_left // vector - 1)
            steps.append((row, chunk))
            valid.append([reduce(m.both, conditions)] * vector if conditions else None)
        body(Block(steps, valid, list(range(len(steps))), False))

    # ---- transposed operands
    # -------------------------------------------------------------------------------------------

    def _fetch_all(self, block: Block, function: Function) -> dict[str, list[Any]]:
        wanted = reads(function)
        transposed = [t for t in self.tile.transposed if t.name in wanted]
        held = {t.name: self._read(t) for t in transposed}
        found = {
            n: self._fetch(block, n) for n in wanted if n in self.dtypes and n not in self.rows[0] and n not in held
        }
        for t in transposed:
            self._stage(t, held[t.name])
        cute.arch.sync_threads()
        return found | {t.name: [self._staged(t, row, chunk) for row, chunk in block.steps] for t in transposed}

    def _micro_blocks(self, transposed: Transposed) -> list[tuple[Any, Any, Any]]:
        """This thread's: the first row, the chunk, and the condition under which it is there at all."""
        along = -(-self.tile.rows // transposed.dense)
        return [
            (item % along * transposed.dense, item // along, there)
            for item, there in self._turns(along * self.tile.chunks)
        ]

    def _read(self, transposed: Transposed) -> list[list[Any]]:
        """The fragments of each micro block, one for each of its lanes."""
        at, vector = self.at, self.space.vector
        assert isinstance(at, TileAddresses)
        rows_left, lanes_left = self._left()
        tensor = self.tensors[transposed.name]
        kind = self._kind(transposed)
        start = cute.recast_ptr(tensor.iterator, dtype=kind) if kind is not tensor.element_type else tensor.iterator
        found = []
        for row, chunk, there in self._micro_blocks(transposed):
            near = row if rows_left is None else cutlass.min(row, rows_left - transposed.dense)
            fragments = []
            for lane in range(vector):
                place = chunk * vector + lane
                place = place if lanes_left is None else cutlass.min(place, lanes_left - 1)
                offset = at.at_point(transposed.name, near, place)
                fragments.append(cute.make_rmem_tensor((transposed.dense,), kind))
                _copy_when(there, _neighbours(start, offset, transposed.dense), fragments[-1])
            found.append(fragments)
        return found

    def _stage(self, transposed: Transposed, held: list[list[Any]]) -> None:
        """Micro blocks to shared memory, turned."""
        vector = self.space.vector
        kind = self._kind(transposed)
        for (row, chunk, there), fragments in zip(self._micro_blocks(transposed), held, strict=True):
            for k in range(transposed.dense):
                part = cute.make_rmem_tensor((vector,), kind)
                for lane in range(vector):
                    part[lane] = fragments[lane][k]
                _copy_when(there, part, self._cell(transposed, row + k, chunk))

    def _staged(self, transposed: Transposed, row: Any, chunk: Any) -> Any:
        part = cute.make_rmem_tensor((self.space.vector,), self._kind(transposed))
        cute.autovec_copy(self._cell(transposed, row, chunk), part)
        return part

    def _cell(self, transposed: Transposed, row: Any, chunk: Any) -> Any:
        """A chunk of a row of the tile, in shared memory."""
        swap = (row // transposed.dense) & transposed.mask if transposed.mask else 0
        place = row * transposed.pitch + (chunk ^ swap if transposed.mask else chunk)
        vector = self.space.vector
        return _neighbours(self.shared[transposed.name].iterator, place * vector, vector)


def _neighbours(start: Any, offset: Any, count: int) -> Any:
    """`count` elements at an offset that is a multiple of as many."""
    pointer = start + (cute.assume(offset, divby=count) if count > 1 else offset)
    return cute.make_tensor(pointer, cute.make_layout((count,)))


def _copy_when(condition: Any, source: Any, target: Any) -> None:
    if condition is None:
        cute.autovec_copy(source, target)
    else:
        when(condition, lambda: cute.autovec_copy(source, target))
