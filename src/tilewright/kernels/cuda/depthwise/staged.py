"""What a tile of a depthwise convolution reads, in shared memory in fp32; traced inside a kernel.

0 0 0 0 0 0 0 0     lines of a plane, with zeros outside of the tensor: written in vectors, what comes before the
0 x x x x x x 0     convolution done on the way
0 x x x x x x 0
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, cute

from ..common import math as m
from ..common.addresses import Addresses, Source, coordinates
from ..common.control import when
from ..common.spec import reads
from ..common.views import ITEM_BYTES
from ..rows.cta import Cta
from ..rows.cta_rows import called
from ..rows.slides import Given
from .plan import ASKED_WORDS, DepthwisePlan, DepthwiseSpec


def vector_of(pointer: Any, offset: Any, lanes: int) -> Any:
    place = cute.assume(offset, divby=lanes) if lanes > 1 else offset
    return cute.make_tensor(pointer + place, cute.make_layout((lanes,)))


def all_of(conditions: list[Any]) -> Any:
    """None where there are none."""
    found = None
    for condition in conditions:
        found = condition if found is None else m.both(found, condition)
    return found


class WindowTileCta(Cta):
    """Which tile is this CTA's, and where its results lie."""

    plan: DepthwisePlan
    depthwise: DepthwiseSpec

    def _place(self) -> None:
        self.windows, self.part = self.plan.windows_at, self.plan.part
        self.depthwise = self.kernel.depthwise  # type: ignore[attr-defined]
        self.source = self.sources[self.depthwise.source]
        self.operand = next(o for o in self.spec.operands if o.name == self.depthwise.source)
        self.thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        self._find_tile(block)
        self.chunk, self.member, self.group = Int32(0), Int32(0), self.thread
        self.group_index, self.alive = Int32(0), None
        self.together = self.space.vector
        names = [n for n in reads(self.depthwise.prologue) if n != self.depthwise.source]
        self.beside = [n for n in names if not n.startswith("index_")]
        self.beside_of: dict[str, Any] = {}
        self.anywhere = {n: Int32(0) for n in names if n.startswith("index_")}  # where windows lie is of no account

    def _find_tile(self, block: Any) -> None:
        """Its first plane, row and column, and how many planes there are."""
        tile = self.part
        first, row, column = coordinates(block, (1 << 30, tile.row_tiles, tile.column_tiles))
        self.plane, self.row, self.column = first * tile.planes, row * tile.rows, column * tile.columns
        self.count: Any = self.windows.planes
        self.ragged = self.count % tile.planes != 0
        if self.plan.rows != "fixed":
            images = Int32(self.tensors[self.spec.operands[self.spec.rows_of].name].shape[0])
            self.count, self.ragged = images * self.windows.planes, self.plan.rows == "ragged"

    def _weight_cells(self) -> int:
        return self.part.planes * self.windows.each * self.kernel_cells

    def _allocate(self) -> None:
        super()._allocate()
        windows, tile = self.windows, self.part
        self.line_cells = windows.along.steps if windows.along.steps < 3 else -(-windows.along.steps // 4) * 4
        self.kernel_cells = self.line_cells * windows.down.steps
        cells = self._weight_cells()
        self.lines: Any = tile.cells and self.allocator.allocate_tensor(
            Float32, cute.make_layout((tile.cells,)), byte_alignment=16
        )
        beside = tile.planes * len(self.beside) if tile.planes > 1 and not tile.channels else 0
        self.planes: Any = beside and self.allocator.allocate_tensor(
            Float32, cute.make_layout((beside,)), byte_alignment=16
        )
        self.weights = self.allocator.allocate_tensor(Float32, cute.make_layout((cells,)), byte_alignment=16)

    def _channel(self, plane: Any) -> list[Any]:
        """Image and channel of a plane of the tile; of one behind the last, the last's."""
        number = self.plane + plane
        if self.ragged:
            number = cutlass.min(number, Int32(self.count - 1))
        return coordinates(number, (self.windows.image.count, self.windows.channel.count))

    def _address(self, channel: list[Any], multiple: Any, row: Any, column: Any) -> Addresses:
        """Of the results of this image, channel, number among the channel's, row and column; what lies side by side is
        counted in vectors."""
        windows = self.windows
        kept = [(windows.image.kept, channel[0]), (windows.channel.kept, channel[1]), (windows.multiplier, multiple),
                (windows.down.kept, row), (windows.along.kept, column)]  # fmt: skip
        there = {dimension: value for dimension, value in kept if dimension is not None}
        place = [there[dimension] for dimension in sorted(there)]
        at = copy(self.at)
        at.base = {}
        for name, view in self.space.views.items():
            total = at.kind(0)
            for value, stride in zip(place, view.group_strides, strict=True):
                if stride:
                    total = total + at.kind(value) * at.kind(stride)
            at.base[name] = total
        return at

    def _store(self, memory: Any, cell: Any, values: list[Any]) -> None:
        fragment = cute.make_rmem_tensor((len(values),), Float32)
        for lane, value in enumerate(values):
            fragment[lane] = value
        cute.autovec_copy(fragment, vector_of(memory.iterator, cell, len(values)))

    def _read(self, offset: Any) -> Any:
        """A vector of the source."""
        fragment = cute.make_rmem_tensor((self.part.vector,), self.source.tensor.element_type)
        cute.autovec_copy(vector_of(self.source.tensor.iterator, offset, self.part.vector), fragment)
        return fragment

    def _known(self, plane: Any) -> dict[str, Any]:
        """What the prologue reads beside the source: values of the plane."""
        walk = self.at
        self.at = self._address(self._channel(plane), Int32(0), Int32(0), Int32(0))
        self.rows = self._new_rows()
        self._load_rows()
        self._compute_rows(self.spec.head)
        self.at = walk
        return {name: m.cast(self.rows[0][name], "f32") for name in self.beside}

    def _value(self, fragment: Any, lane: int, known: dict[str, Any]) -> Any:
        """One element of the source with what comes before the convolution."""
        given = Given(m.lane_of(fragment, lane, self.operand.dtype), None, self.operand.dtype)
        return m.cast(called(self.depthwise.prologue, {**self.anywhere, **known, self.depthwise.source: given}), "f32")


class StagedWeights(WindowTileCta):
    """The tile's weights in shared memory."""

    def _stage_weights(self) -> None:
        windows, threads = self.windows, self.part.threads
        shape = next(o.shape for o in self.spec.operands if o.name == self.depthwise.weights)
        dtype = self.dtypes[self.depthwise.weights]
        source = Source(self.tensors[self.depthwise.weights], dtype, shape)
        sizes = (self.part.planes, windows.each, windows.down.steps, windows.along.steps)
        count = self.part.planes * windows.each * windows.taps
        for turn in range(-(-count // threads)):
            item = self.thread + turn * threads
            if (turn + 1) * threads > count:
                item = cutlass.min(item, Int32(count - 1))
            plane, multiple, line, tap = coordinates(item, sizes)
            _, channel = self._channel(plane)
            at = self._weight_place(shape, channel, multiple, self._taps(line, tap))
            value = self.depthwise.factor(source.load(at))
            cell = ((plane * windows.each + multiple) * windows.down.steps + line) * self.line_cells + tap
            self._store(self.weights, cell, [m.cast(value, "f32")])

    def _weight_place(self, shape: tuple[int, ...], channel: Any, multiple: Any, taps: list[Any]) -> tuple[Any, ...]:
        """Where a weight lies in its operand of this shape."""
        at: list[Any] = [0] * len(shape)
        reduced = [d for d in self.spec.reduced if self.spec.domain[d] > 1]
        places = {self.windows.channel.kept: channel, self.windows.multiplier: multiple}
        places |= dict(zip(reduced, taps, strict=True))
        for dimension, value in places.items():
            if dimension is not None and shape[dimension] > 1:
                at[dimension] = value
        return tuple(at)

    def _taps(self, line: Any, tap: Any) -> list[Any]:
        """The reduced dimensions' positions, in the order of the domain."""
        return [value for axis, value in ((self.windows.down, line), (self.windows.along, tap)) if axis.steps > 1]


class StagedPlanes(StagedWeights):
    """What the prologue reads of each plane: in registers where there is one, in shared memory where there are more."""

    def _stage_planes(self) -> None:
        count, threads = self.part.planes, self.part.threads
        if count == 1:
            self.only = self._known(Int32(0)) if self.beside else {}
        if count == 1 or not self.beside:
            return
        for turn in range(-(-count // threads)):
            plane = self.thread + turn * threads
            body = partial(self._stage_plane, cutlass.min(plane, Int32(count - 1)))
            when(Boolean(plane < count), body)
        cute.arch.sync_threads()

    def _stage_plane(self, plane: Any) -> None:
        for number, value in enumerate(self._known(plane).values()):
            self._store(self.planes, plane * len(self.beside) + number, [value])

    def _staged(self, plane: Any) -> dict[str, Any]:
        if self.part.planes == 1 or not self.beside:
            return self.only if self.part.planes == 1 else {}
        found = {}
        for number, name in enumerate(self.beside):
            fragment = cute.make_rmem_tensor((1,), Float32)
            cute.autovec_copy(vector_of(self.planes.iterator, plane * len(self.beside) + number, 1), fragment)
            found[name] = fragment[0]
        return found


class StagedTile(StagedPlanes):
    """The tile's lines there, too."""

    def _stage(self) -> None:
        """The tile's lines and weights; several vectors of a thread are on their way at once, and weights beside the
        first of them."""
        tile, words = self.part, -(-self.part.vector * ITEM_BYTES[self.operand.dtype] // 4)
        vectors = tile.planes * tile.lines * (tile.span // tile.vector)
        if tile.flat:
            plane = self.windows.down.length * self.windows.along.length
            vectors = -(-tile.planes * plane // tile.vector) + 1
            self._clear()
            cute.arch.sync_threads()
        turns, together = -(-vectors // tile.threads), max(ASKED_WORDS // words, 1)
        ask, take = (self._ask_flat, self._take_flat) if tile.flat else (self._ask, self._take)
        for begin in range(0, turns, together):
            asked = []
            for turn in range(begin, min(begin + together, turns)):
                item = self.thread + turn * tile.threads
                if (turn + 1) * tile.threads > vectors:
                    item = cutlass.min(item, Int32(vectors - 1))
                asked.append(ask(item))
            if begin == 0:
                self._stage_weights()
            for arguments in asked:
                take(*arguments)

    def _ask(self, item: Any) -> tuple[Any, Any, Any, Any]:
        """What was read of a line, whether it lies inside, its plane and its cell; nothing is touched outside."""
        tile, source, down, along = self.part, self.source, self.windows.down, self.windows.along
        plane, line, number = coordinates(item, (tile.planes, tile.lines, tile.span // tile.vector))
        row = self.row * down.apart + down.start + line
        column = self.column * along.apart + tile.first + number * tile.vector
        inside = m.both(column >= 0, column < along.length)
        if len(self.operand.shape) == 4:
            inside = m.both(inside, m.both(row >= 0, row < down.length))
        image, channel = self._channel(plane)
        offset = source.kind(column)
        for place, stride in zip((image, channel, row), source.strides[:-1], strict=False):
            offset = offset + source.kind(place) * source.kind(stride)
        offset = m.select(Boolean(inside), offset, source.kind(0))
        cell = plane * tile.apart + line * tile.pitch + number * tile.vector
        return self._read(offset), inside, plane, cell

    def _take(self, fragment: Any, inside: Any, plane: Any, cell: Any) -> None:
        """What was read of a vector, with what comes before the convolution; zeros where it lies outside."""
        lanes, known = self.part.vector, self._staged(plane)
        values = [self._value(fragment, lane, known) for lane in range(lanes)]
        values = [m.select(Boolean(inside), value, Float32(0.0)) for value in values]
        wide = min(lanes, 4)
        for lane in range(0, lanes, wide):
            self._store(self.lines, cell + lane, values[lane : lane + wide])

    def _clear(self) -> None:
        """Zeros everywhere; all cells are vectors of four."""
        vectors, threads = self.part.cells // 4, self.part.threads
        for turn in range(-(-vectors // threads)):
            number = self.thread + turn * threads
            body = partial(self._store, self.lines, number * 4, [Float32(0.0)] * 4)
            if (turn + 1) * threads <= vectors:
                body()
            else:
                when(Boolean(number < vectors), body)

    def _ask_flat(self, item: Any) -> tuple[Any, Any]:
        """A vector of the stretch, and how far from the tile's first element it begins."""
        source, lanes, windows = self.source, self.part.vector, self.windows
        plane = windows.down.length * windows.along.length
        first = source.kind(self.plane) * source.kind(plane)
        begin = first // lanes * lanes + source.kind(item) * lanes
        begin = cutlass.min(begin, source.kind(self.count) * plane - lanes)
        return self._read(begin), Int32(begin - first)

    def _take_flat(self, fragment: Any, begin: Any) -> None:
        """Element by element: lines begin anywhere in a vector."""
        tile, down, along = self.part, self.windows.down, self.windows.along
        last = tile.planes * down.length * along.length
        for lane in range(tile.vector):
            number = begin + lane
            nearest = cutlass.max(cutlass.min(number, Int32(last - 1)), Int32(0))
            plane, row, column = coordinates(nearest, (tile.planes, down.length, along.length))
            cell = plane * tile.apart + (row - down.start) * tile.pitch + column - tile.first
            inside = m.both(number >= 0, number < last)
            if down.start + tile.lines < down.length:  # rows behind the last window
                inside = m.both(inside, row < down.start + tile.lines)
            if tile.first + tile.span < along.length:
                inside = m.both(inside, column < tile.first + tile.span)
            value = self._value(fragment, lane, self._staged(plane))
            when(Boolean(inside), partial(self._store, self.lines, cell, [value]))
