"""A depthwise convolution of an image in which the channels of a pixel lie side by side; traced inside a kernel.

c c c c | c c c c     a thread has a vector of channels: of each pixel that its windows read it asks for that one,
c c c c | c c c c     and neighbours find in the L1 what they share; weights come through shared memory, channel
c c c c | c c c c     beside channel
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute.math as _lib
from cutlass import Boolean, Float32, Int32, cute

from ..common import math as m
from ..common.addresses import Source, coordinates
from .results import ResultsCta
from .staged import all_of, vector_of


class LastCta(ResultsCta):
    """`down x along` results a thread, of a vector of channels each; `planes` images a tile."""

    def _find_tile(self, block: Any) -> None:
        tile = self.part
        sizes = (1 << 30, tile.row_tiles, tile.column_tiles, tile.channel_tiles)
        first, row, column, channel = coordinates(block, sizes)
        self.plane, self.row, self.column = first * tile.planes, row * tile.rows, column * tile.columns
        self.first_vector, self.count = channel * tile.channels, self.windows.image.count
        self.vectors = self.windows.channel.count // tile.vector

    def _weight_cells(self) -> int:
        return self.windows.taps * self.part.channels * self.part.vector

    def run(self) -> None:
        self._stage_weights()
        cute.arch.sync_threads()
        images, down, along = self.part.groups
        count = images * down * along * self.part.channels
        item, conditions = self.thread, []
        if count < self.part.threads:
            conditions.append(item < count)
            item = cutlass.min(item, Int32(count - 1))
        image, row, column, vector = coordinates(item, (images, down, along, self.part.channels))
        number, channel = self.plane + image, self.first_vector + vector
        if self.count % images:
            conditions.append(number < self.count)
            number = cutlass.min(number, Int32(self.count - 1))
        if self.vectors % self.part.channels:
            conditions.append(channel < self.vectors)
            channel = cutlass.min(channel, Int32(self.vectors - 1))
        self._results([number, channel], (row * self.part.down, column * self.part.along, vector), conditions)

    def _results(self, channel: list[Any], place: tuple[Any, Any, Any], conditions: list[Any]) -> None:
        (row, column, _), steady = place, self._steady()
        first = self._address(channel, None, Int32(0), Int32(0))
        of_channel, known = self._read_beside(first, steady), self._known_lanes(channel)
        sums = self._sums(channel, place, known)
        for line in range(self.part.down):
            for number in range(self.part.along):
                alive = all_of([*conditions, *self._inside(row + line, column + number)])
                there, along = self.row + row + line, self.column + column + number
                if alive is not None:
                    there = cutlass.min(there, Int32(self.windows.down.count - 1))
                    along = cutlass.min(along, Int32(self.windows.along.count - 1))
                self.alive, self.at = alive, self._address(channel, None, there, along)
                self.beside_of = of_channel | self._read_beside(self.at, self.row_level - steady)
                self._result(sums[line][number])

    def _stage_weights(self) -> None:
        windows, tile = self.windows, self.part
        shape = next(o.shape for o in self.spec.operands if o.name == self.depthwise.weights)
        source = Source(self.tensors[self.depthwise.weights], self.dtypes[self.depthwise.weights], shape)
        sizes, count = (windows.down.steps, windows.along.steps, tile.channels * tile.vector), self._weight_cells()
        for turn in range(-(-count // tile.threads)):
            item = self.thread + turn * tile.threads
            if (turn + 1) * tile.threads > count:
                item = cutlass.min(item, Int32(count - 1))
            line, tap, lane = coordinates(item, sizes)
            channel = self.first_vector * tile.vector + lane
            if self.vectors % tile.channels:
                channel = cutlass.min(channel, Int32(windows.channel.count - 1))
            value = self.depthwise.factor(source.load(self._weight_place(shape, channel, None, self._taps(line, tap))))
            self._store(self.weights, item, [m.cast(value, "f32")])

    def _known_lanes(self, channel: list[Any]) -> list[dict[str, Any]]:
        """What the prologue reads beside the source, of each channel of the vector."""
        if not self.beside:
            return [{}] * self.part.vector
        self.at = self._address(channel, None, Int32(0), Int32(0))
        self.rows = self._new_rows()
        self._load_rows()
        self._compute_rows(self.spec.head)
        return [{name: m.cast(row[name], "f32") for name in self.beside} for row in self.rows]

    def _sums(self, channel: list[Any], place: tuple[Any, Any, Any], known: list[dict[str, Any]]) -> list[Any]:  # type: ignore[override]
        """[down][along][channel of the vector], without what follows."""
        tile, down, along, lanes = self.part, self.windows.down, self.windows.along, range(self.part.vector)
        sums = [[[Float32(0.0) for _ in lanes] for _ in range(tile.along)] for _ in range(tile.down)]
        for line in range(down.reach(tile.down)):
            pixels: dict[int, list[Any]] = {}
            for result in range(tile.down):
                step, rest = divmod(line - result * down.apart, down.step)
                for tap in range(along.steps) if rest == 0 and 0 <= step < down.steps else ():
                    weights = self._weight_vector((step * along.steps + tap) * tile.channels + place[2])
                    for number in range(tile.along):
                        at = number * along.apart + tap * along.step
                        if at not in pixels:
                            pixels[at] = self._pixel(channel, (place[0], place[1]), (line, at), known)
                        held = sums[result][number]
                        for lane in lanes:
                            held[lane] = _lib.fma(pixels[at][lane], weights[lane], held[lane])
        return sums

    def _weight_vector(self, number: Any) -> list[Any]:
        wide, found = min(self.part.vector, 4), list[Any]()
        for begin in range(0, self.part.vector, wide):
            fragment = cute.make_rmem_tensor((wide,), Float32)
            cute.autovec_copy(vector_of(self.weights.iterator, number * self.part.vector + begin, wide), fragment)
            found += [fragment[i] for i in range(wide)]
        return found

    def _pixel(
        self, channel: list[Any], place: tuple[Any, Any], step: tuple[int, int], known: list[dict[str, Any]]
    ) -> list[Any]:
        """A vector of channels, with what comes before the convolution; zeros outside of the image."""
        source, down, along, tile = self.source, self.windows.down, self.windows.along, self.part
        row = (self.row + place[0]) * down.apart + (down.start + step[0])
        column = (self.column + place[1]) * along.apart + (along.start + step[1])
        inside = m.both(column >= 0, column < along.length)
        places = [channel[0], column]
        strides = [source.strides[0], source.strides[-1]]
        if len(self.operand.shape) == 4:
            inside = m.both(inside, m.both(row >= 0, row < down.length))
            places, strides = [*places, row], [*strides, source.strides[2]]
        offset = source.kind(channel[1]) * tile.vector
        for at, stride in zip(places, strides, strict=True):
            offset = offset + source.kind(at) * source.kind(stride)
        fragment = self._read(m.select(Boolean(inside), offset, source.kind(0)))
        values = [self._value(fragment, lane, known[lane]) for lane in range(tile.vector)]
        return [m.select(Boolean(inside), value, Float32(0.0)) for value in values]
