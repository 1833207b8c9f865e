"""Windows that overlap along several axes: threads walk down columns and keep what they have read of them; traced
inside a kernel (see `engine`, and `sliding` for who does what).

    | x x x x | x x x x |  a step: the rows that are new come in vectors, the planes of a window at once, and with what
    | x x x x | x x x x |  the thread has kept they make one value a column
    |  max    |  max    |  these go to shared memory, where outside of the tensor lies the neutral element
        [o   o   o   o]    a thread reads the columns of its results' windows from there, lanes side by side

What a step reads is asked for some steps `ahead`. Two buffers in turn take one barrier a step.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from itertools import chain, product
from math import gcd
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, cute

from ..common import math as m
from ..common.addresses import Addresses, coordinates
from ..common.control import when
from ..common.spec import reads
from .combine import Held
from .cta import Cta
from .cta_rows import called
from .reducers import Reducer, tree
from .sliding import SlidingAxis, slid


class Given:
    """An element that is at hand, as element functions ask for it (see `addresses.Source`)."""

    def __init__(self, value: Any, inside: Any, dtype: str) -> None:
        self._value, self._inside, self._dtype = value, inside, dtype

    def load(self, at: Any, checked: tuple[int, ...] = (), fill: Any = None) -> Any:
        if self._inside is None or fill is None:
            return self._value
        return m.select(self._inside, self._value, m.cast(fill, self._dtype))

    def inside(self, at: Any, checked: tuple[int, ...] = ()) -> Any:
        return Boolean(True) if self._inside is None else self._inside


class Columns:
    """What a thread has of its columns: rows by their number from the walk's first on, and what runs of them make.
    Neighbouring windows share runs: of four rows, two pairs."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._known: dict[tuple[int, ...], list[Any]] = {}

    def __contains__(self, row: int) -> bool:
        return (row,) in self._known

    def put(self, row: int, values: list[Any]) -> None:
        self._known[(row,)] = values

    def join(self, first: list[Any], second: list[Any]) -> list[Any]:
        return [self._reducer.merge((a,), (b,))[0] for a, b in zip(first, second, strict=True)]

    def of(self, rows: tuple[int, ...]) -> list[Any]:
        """One value a column."""
        if rows not in self._known:
            half = 1 << (len(rows) - 1).bit_length() - 1
            self._known[rows] = self.join(self.of(rows[:half]), self.of(rows[half:]))
        return self._known[rows]


def _vector(pointer: Any, offset: Any, lanes: int) -> Any:
    place = cute.assume(offset, divby=lanes) if lanes > 1 else offset
    return cute.make_tensor(pointer + place, cute.make_layout((lanes,)))


def _both(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return m.both(one, other)


class SlideReads(Cta):
    """What a thread reads of the tensor: vectors of its columns' rows, of all planes of a window."""

    wanted: list[str]  # views whose values results need

    def _place(self) -> None:
        found = slid(self.spec)
        assert found is not None and self.plan.slide is not None
        self.operand, self.axes = found
        self.slide, self.source = self.plan.slide, self.sources[self.operand.name]
        slide, (*_, down, along) = self.slide, self.axes
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        self.thread, self.line = thread, thread // slide.vectors
        self.quad = thread % slide.vectors
        if slide.lines * slide.vectors < slide.threads:  # the last threads do what others do, too
            self.line = cutlass.min(self.line, Int32(slide.lines - 1))
        number = block * slide.lines + self.line
        count, ragged = slide.count, slide.count % slide.lines
        if self.plan.rows != "fixed":
            count = Int32(self.tensors[self.spec.operands[self.spec.rows_of].name].shape[0]) * slide.count
            ragged = self.plan.rows == "ragged"
        if ragged:
            number = cutlass.min(number, Int32(count - 1))
        outer, walk, tile, near = coordinates(number, (slide.outer, slide.walks, slide.tiles, slide.near))
        self.row, self.start = walk * slide.rows, tile * slide.outs
        self.together = self.space.vector  # results of a thread, side by side
        if down.count % slide.rows:  # the last walk begins early, and writes again what another one does
            self.row = cutlass.min(self.row, Int32(down.count - slide.rows))
        self.sign: Any = None  # of a step; None: all walks go down
        if slide.turns:
            self.sign = m.select(Boolean(walk % 2 == 0), Int32(1), Int32(-1))
        self.chunk, self.member, self.group = Int32(0), Int32(0), thread
        line = (outer * slide.near + near) * down.count + self.row
        self.group_index, self.alive = line * (along.count // self.together), None
        self.reducer: Reducer = self.kernel.reducers[0][0]

    def _allocate(self) -> None:
        super()._allocate()
        layout = cute.make_layout((2 * self.slide.lines * self.slide.cells,))
        self.shared = self.allocator.allocate_tensor(Float32, layout, byte_alignment=16)

    def _rows(self, step: int) -> tuple[int, ...]:
        """Of one step's windows, counted from the walk's first."""
        down = self.axes[-2]
        return tuple(step * down.apart + i * down.step for i in range(down.steps))

    def _find(self) -> None:
        """Where the walk begins: its planes, row and column."""
        *outer, down, along = self.axes
        source, slide = self.source, self.slide
        self.planes: list[tuple[Any, Any]] = []
        firsts = [self._index(axis) * axis.apart + axis.start for axis in outer]
        for steps in product(*(range(axis.steps) for axis in outer)):
            offset, inside = source.kind(0), None
            for axis, first, step, stride in zip(outer, firsts, steps, source.strides[:-2], strict=True):
                place = first + step * axis.step
                inside = _both(inside, self._within(axis, place))
                offset = offset + source.kind(place) * source.kind(stride)
            self.planes.append((offset, inside))
        self.top = self.row * down.apart + down.start
        self.first_row = Int32(0)  # of results, counted from the walk's least
        if self.sign is not None:
            up = self.sign < 0
            self.top = self.top + m.select(Boolean(up), Int32(down.reach(slide.rows) - 1), Int32(0))
            self.first_row = m.select(Boolean(up), Int32(slide.rows - 1), Int32(0))
        self.column, self.there = self.quad * slide.vector, None
        if not slide.whole:
            self.column = self.start * along.apart + slide.first + self.column
            self.there = m.both(self.column >= 0, self.column < along.length)

    def _prepare(self, after: set[str]) -> None:
        """What of the walk's first result all elements share, and where windows lie: of no account (see `Given`)."""
        names = reads(self.spec.sweeps[0].elements)
        wanted, self.wanted = self.wanted, [n for n in self.space.views if n in {*names, *after}]
        self.rows = self._new_rows()
        self._load_rows()
        self._compute_rows(self.spec.head)
        self.shared_by_all = {n: Int32(0) for n in names if n.startswith("index_")} | self.rows[0]
        self.wanted = wanted

    def _load_rows(self) -> None:
        """What is wanted of them: of positions, most results need none."""
        for operand in self.spec.aligned_operands:
            if operand.name in self.wanted:
                fragment = self._row_operand(operand.name)
                for lane, row in enumerate(self.rows):
                    row[operand.name] = m.cast(fragment[min(lane, cute.size(fragment) - 1)], operand.dtype)
        for name in self.wanted:
            for lane, row in enumerate(self.rows) if name.startswith("index_") else ():
                row[name] = self.at.base[name] + lane * self.space.views[name].lane_stride

    def _index(self, axis: SlidingAxis) -> Any:
        return Int32(0) if axis.kept is None else Int32(self.at.base[f"index_{axis.kept}"])

    def _within(self, axis: SlidingAxis, place: Any) -> Any:
        return None if axis.inside else m.both(place >= 0, place < axis.length)

    def _ask(self, row: int) -> list[tuple[Any, Any]]:
        """The thread's vector of a row, of each plane, and whether it lies inside; nothing is touched outside."""
        source, down, lanes = self.source, self.axes[-2], self.slide.vector
        here = _both(self._within(down, self.top + self._signed(row)), self.there)
        stride = source.kind(source.strides[-2])
        line = source.kind(self.top) * stride + source.kind(self.column)
        line = line + source.kind(self._signed(1)) * stride * row
        found = []
        for offset, plane in self.planes:
            inside = _both(plane, here)
            place = offset + line
            if inside is not None:
                place = m.select(Boolean(inside), place, source.kind(0))
            fragment = cute.make_rmem_tensor((lanes,), source.tensor.element_type)
            cute.autovec_copy(_vector(source.tensor.iterator, place, lanes), fragment)
            found.append((fragment, inside))
        return found

    def _signed(self, step: int) -> Any:
        return step if self.sign is None else self.sign * step

    def _take(self, columns: Columns, asked: list[tuple[Any, Any]]) -> list[Any]:
        """One value a column of what was asked for."""
        planes = []
        for fragment, inside in asked:
            values = [m.lane_of(fragment, lane, self.operand.dtype) for lane in range(self.slide.vector)]
            planes.append([self._element(value, inside) for value in values])
        return tree(planes, columns.join)  # type: ignore[no-any-return]

    def _element(self, value: Any, inside: Any) -> Any:
        """What is reduced of it."""
        given = Given(value, None if inside is None else Boolean(inside), self.operand.dtype)
        (found,) = called(self.spec.sweeps[0].elements, {**self.shared_by_all, self.operand.name: given})
        return self.reducer.prepare(found)


class SlideCta(SlideReads):
    """`slide.lines` lines, each by `slide.vectors` threads."""

    def run(self) -> None:
        slide, down = self.slide, self.axes[-2]
        if slide.whole and slide.cells != slide.vectors * slide.vector:
            self._clear()
            cute.arch.sync_threads()
        self._find()
        after = {*reads(self.spec.head), *reads(self.spec.sweeps[0].rows)}
        self.wanted = [name for name in self.space.views if name.startswith("out_") or name in after]
        self._prepare(after)
        walk, columns, asked = self.at, Columns(self.reducer), dict[int, list[tuple[Any, Any]]]()
        for step in range(slide.rows + slide.ahead):
            if step < slide.rows:
                for row in self._rows(step):
                    if row not in asked:
                        asked[row] = self._ask(row)
            now = step - slide.ahead
            if now < 0:
                continue
            rows = self._rows(now)
            for row in rows:
                if row not in columns:
                    columns.put(row, self._take(columns, asked[row]))
            side = now % 2 * slide.lines * slide.cells
            self._put(side, columns.of(rows))
            cute.arch.sync_threads()
            for turn in range(-(-slide.outs // (slide.vectors * self.together))):
                self._result(walk, side, now, turn)
        assert set(asked) == {row for step in range(slide.rows) for row in self._rows(step)} and down.steps > 1

    def _clear(self) -> None:
        """The neutral element everywhere."""
        threads, lanes = self.slide.threads, 4
        neutral = cute.make_rmem_tensor((lanes,), Float32)
        for lane in range(lanes):
            neutral[lane] = self.reducer.identity()[0]
        vectors = 2 * self.slide.lines * self.slide.cells // lanes
        for turn in range(-(-vectors // threads)):
            number = self.thread + turn * threads
            target = _vector(self.shared.iterator, number * lanes, lanes)
            if (turn + 1) * threads <= vectors:
                cute.autovec_copy(neutral, target)
            else:
                when(number < vectors, partial(cute.autovec_copy, neutral, target))

    def _put(self, side: int, values: list[Any]) -> None:
        """A value a column, into one of the buffers."""
        slide, lanes = self.slide, self.slide.vector
        fragment = cute.make_rmem_tensor((lanes,), Float32)
        for lane, value in enumerate(values):
            fragment[lane] = value
        begin = -slide.first if slide.whole else 0
        cell = self.line * slide.cells + self.quad * lanes + (side + begin)
        cute.autovec_copy(fragment, _vector(self.shared.iterator, cell, lanes))

    def _result(self, walk: Addresses, side: int, step: int, turn: int) -> None:
        """A thread's neighbouring results: of row `step` of the walk, and of its lines' results the turn-th part."""
        slide, along, together = self.slide, self.axes[-1], self.together
        lane, self.alive, groups = self.quad + turn * slide.vectors, None, slide.outs // together
        if (turn + 1) * slide.vectors > groups:
            self.alive = lane < groups
            lane = cutlass.min(lane, Int32(groups - 1))
        column = self.start // together + lane
        if slide.tiles * slide.outs > along.count:
            self.alive = _both(self.alive, column < along.count // together)
            column = cutlass.min(column, Int32(along.count // together - 1))
        begin = along.start - slide.first
        reads = [[begin + i * along.apart + j * along.step for j in range(along.steps)] for i in range(together)]
        cells = self._cells(self.line * slide.cells + lane * (along.apart * together) + side, {*chain(*reads)})
        held = Held(self.reducer, together)
        for number, places in enumerate(reads):
            held[number] = tree([(cells[place],) for place in places], self.reducer.merge)
        self.at = copy(walk)
        self.at.base = {name: walk.base[name] + self._moved(name, step, column) for name in self.wanted}
        self.rows = self._new_rows()
        self._load_rows()
        self._compute_rows(self.spec.head)
        self._finish(0, [held])
        self._write_rows()

    def _moved(self, name: str, step: int, column: Any) -> Any:
        strides = self.space.views[name].group_strides
        down = self.at.kind(self.first_row) * self.at.kind(strides[-2])
        down = down + self.at.kind(self._signed(1)) * self.at.kind(strides[-2]) * step
        return self.at.kind(column) * self.at.kind(strides[-1]) + down

    def _cells(self, first: Any, places: set[int]) -> dict[int, Any]:
        """Those at these places from `first` on, in as wide reads as lanes' distance allows."""
        wide, found = gcd(4, self.together * self.axes[-1].apart), dict[int, Any]()
        for begin in sorted({place // wide * wide for place in places}):
            fragment = cute.make_rmem_tensor((wide,), Float32)
            cute.autovec_copy(_vector(self.shared.iterator, first + begin, wide), fragment)
            found |= {begin + i: fragment[i] for i in range(wide)}
        return found
