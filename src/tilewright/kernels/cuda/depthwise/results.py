"""A tile's results: sums over windows, with what follows the convolution; traced inside a kernel.

0 0 0 0 0 0 0 0
0 x x x x x x 0
  [o o o o]         a thread reads the lines of its results' windows one after the other, in vectors, and adds a
  [o o o o]         line's products to all the results whose windows it lies in
"""

from __future__ import annotations

from math import gcd
from typing import Any

import cutlass
import cutlass.cute.math as _lib
from cutlass import Boolean, Float32, Int32, cute

from ..common import math as m
from ..common.addresses import Addresses, coordinates
from ..rows.combine import Held
from .staged import StagedTile, all_of, vector_of


class ResultsCta(StagedTile):
    """What follows the convolution, and what is read for it."""

    @property
    def row_level(self) -> set[str]:
        """What is read beside the results."""
        return {o.name for o in self.spec.aligned_operands if self.spec.at_row_level(o.shape)}

    def _steady(self) -> set[str]:
        """What of it is the same for all results of a channel."""
        windows = self.windows
        axes = (windows.image, windows.channel, windows.down, windows.along)
        order = sorted(d for d in (*(a.kept for a in axes), windows.multiplier) if d is not None)
        moving = [order.index(a.kept) for a in (windows.down, windows.along) if a.kept is not None]
        views = {name: self.space.views[name] for name in self.row_level}
        lanes = not self.part.channels
        return {
            name
            for name, view in views.items()
            if not (lanes and view.lane_stride) and not any(view.group_strides[i] for i in moving)
        }

    def _read_beside(self, at: Addresses, names: set[str]) -> dict[str, Any]:
        return {name: at.load(name, at.base[name]) for name in sorted(names)}

    def _row_operand(self, name: str) -> Any:
        found = self.beside_of.get(name)
        return super()._row_operand(name) if found is None else found

    def _inside(self, row: Any, column: Any) -> list[Any]:
        """Whether a result is the tile's own, of its row and column there and in all; only what must be asked."""
        tile, down, along = self.part, self.windows.down, self.windows.along
        found = []
        if tile.rows % tile.down:
            found.append(row < tile.rows)
        if tile.columns % tile.along:
            found.append(column < tile.columns)
        if down.count % tile.rows:
            found.append(self.row + row < down.count)
        if along.count % tile.columns:
            found.append(self.column + column < along.count)
        return found

    def _result_address(self, channel: list[Any], multiple: int, place: tuple[Any, Any], alive: Any) -> Addresses:
        """Of neighbouring results at a place of the tile; of one that is not there, some other's."""
        row, column = self.row + place[0], self.column + place[1]
        if alive is not None:
            row = cutlass.min(row, Int32(self.windows.down.count - 1))
            column = cutlass.min(column, Int32(self.windows.along.count - self.together))
        return self._address(channel, Int32(multiple), row, column // self.together)

    def _result(self, values: list[Any]) -> None:
        """Neighbouring results, with what follows the convolution."""
        held = Held(self.kernel.reducers[0][0], self.together)
        for lane, value in enumerate(values):
            held[lane] = (value,)
        self.rows = self._new_rows()
        self._load_rows()
        self._compute_rows(self.spec.head)
        self._finish(0, [held])
        self._write_rows()


class DepthwiseCta(ResultsCta):
    """`down x along` results a thread. What is read beside them is on its way before their sums are begun."""

    def run(self) -> None:
        self._stage_planes()
        self._stage()
        cute.arch.sync_threads()
        planes, down, along = self.part.groups
        count = planes * down * along
        for turn in range(-(-count // self.part.threads)):
            item = self.thread + turn * self.part.threads
            there = None
            if (turn + 1) * self.part.threads > count:
                there = item < count
                item = cutlass.min(item, Int32(count - 1))
            self._part(coordinates(item, (planes, down, along)), there)

    def _part(self, place: list[Any], there: Any) -> None:
        """The results of a thread, of all multiples of its channel."""
        plane, row, column = place[0], place[1] * self.part.down, place[2] * self.part.along
        conditions = [] if there is None else [there]
        if self.ragged:
            conditions.append(self.plane + plane < self.count)
        channel, steady = self._channel(plane), self._steady()
        for multiple in range(self.windows.each):
            of_channel = self._read_beside(self._address(channel, Int32(multiple), Int32(0), Int32(0)), steady)
            places = []
            for line in range(self.part.down):
                for first in range(0, self.part.along, self.together):
                    inside = self._inside(row + line, column + first)
                    alive = all_of([*conditions, *inside])
                    at = self._result_address(channel, multiple, (row + line, column + first), alive)
                    places.append((line, first, alive, at, self._read_beside(at, self.row_level - steady)))
            sums = self._sums(plane, multiple, row, column)
            for line, first, self.alive, self.at, beside in places:
                self.beside_of = of_channel | beside
                self._result(sums[line][first : first + self.together])

    def _sums(self, plane: Any, multiple: int, row: Any, column: Any) -> list[list[Any]]:
        """[down][along]: line by line, each into the results whose windows it lies in."""
        tile, down = self.part, self.windows.down
        kernel = (plane * self.windows.each + multiple) * self.kernel_cells
        weights: dict[int, list[Any]] = {}
        sums = [[Float32(0.0)] * tile.along for _ in range(tile.down)]
        for line in range(down.reach(tile.down)):
            taps = {}
            for result in range(tile.down):
                step, rest = divmod(line - result * down.apart, down.step)
                if rest == 0 and 0 <= step < down.steps:
                    taps[result] = step
            values = self._line((plane, row, column), line) if taps else {}
            for result, step in taps.items():
                if step not in weights:
                    weights[step] = self._weights(kernel + step * self.line_cells)
                self._add(sums[result], values, weights[step])
        return sums

    def _add(self, sums: list[Any], values: dict[int, Any], weights: list[Any]) -> None:
        """The products of one line of weights."""
        begin, along = self.windows.along.start - self.part.first, self.windows.along
        for tap, weight in enumerate(weights):
            for number in range(self.part.along):
                value = values[begin + number * along.apart + tap * along.step]
                sums[number] = _lib.fma(value, weight, sums[number])

    def _weights(self, first: Any) -> list[Any]:
        wide = min(self.line_cells, 4)
        found: list[Any] = []
        for begin in range(0, self.line_cells, wide):
            fragment = cute.make_rmem_tensor((wide,), Float32)
            cute.autovec_copy(vector_of(self.weights.iterator, first + begin, wide), fragment)
            found += [fragment[i] for i in range(wide)]
        return found[: self.windows.along.steps]

    def _line(self, place: tuple[Any, Any, Any], line: int) -> dict[int, Any]:
        """What the thread's windows have of one of their lines, by its place from the line's first vector on, in as
        wide reads as may be."""
        (plane, row, column), tile, found = place, self.part, dict[int, Any]()
        first = plane * tile.apart + row * self.windows.down.apart * tile.pitch + column * self.windows.along.apart
        wide = gcd(4, tile.along * self.windows.along.apart)
        for start in self._starts(wide):
            fragment = cute.make_rmem_tensor((wide,), Float32)
            place_there = first + (line * tile.pitch + start)
            cute.autovec_copy(vector_of(self.lines.iterator, place_there, wide), fragment)
            found |= {start + i: fragment[i] for i in range(wide)}
        return found

    def _starts(self, wide: int) -> list[int]:
        """The vectors of a line that a thread's windows read."""
        along, tile = self.windows.along, self.part
        begin = along.start - tile.first
        places = {begin + number * along.apart + tap * along.step
                  for number in range(tile.along) for tap in range(along.steps)}  # fmt: skip
        return sorted({place // wide * wide for place in places})


class CachedCta(DepthwiseCta):
    """The same without lines in shared memory: threads read what they need, and find in the L1 what neighbours read."""

    def _stage(self) -> None:
        self._stage_weights()

    def _line(self, place: tuple[Any, Any, Any], line: int) -> dict[int, Any]:
        (plane, row, column), tile, found = place, self.part, dict[int, Any]()
        source, down, along = self.source, self.windows.down, self.windows.along
        row = (self.row + row) * down.apart + (down.start + line)
        column = (self.column + column) * along.apart + tile.first
        above = m.both(row >= 0, row < down.length) if len(self.operand.shape) == 4 else None
        offset = source.kind(0)
        for at, stride in zip((*self._channel(plane), row), source.strides[:-1], strict=False):
            offset = offset + source.kind(at) * source.kind(stride)
        known = self._staged(plane)
        for start in self._starts(tile.vector):
            there = m.both(column + start >= 0, column + start < along.length)
            inside = Boolean(there if above is None else m.both(above, there))
            fragment = self._read(m.select(inside, offset + source.kind(column + start), source.kind(0)))
            for lane in range(tile.vector):
                value = self._value(fragment, lane, known)
                found[start + lane] = m.select(inside, value, Float32(0.0))
        return found
