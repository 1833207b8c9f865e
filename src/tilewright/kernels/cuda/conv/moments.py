"""Epilogues of convolutions that measure: for each channel and sample the count, the mean and the sum of squared
deviations of what is computed of its pixels, over chunks of tiles (see `reduction`), beside the values themselves or
without writing any.

A thread follows the mean and the squares of each of its channels by Welford's update (Welford 1962), whose error does
not grow with the ratio of mean and deviation; lanes, and later chunks, are joined in pairs (Chan, Golub and LeVeque
1979). All channels of a thread have one count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cutlass import Float32, Int32, Int64, cute

from ..common import math as m
from ..common.control import loop, when
from .epilogue import _CHANNEL, ConvEpilogue
from .reduction import MOMENTS, WARPS, ConvReduction, chunk_tiles, slots
from .shape import ConvShape, Triple
from .tiles import ConvPoint

_APART = (4, 8, 16)  # lanes that have the same channels of other pixels
State = tuple[Any, Any]  # mean, sum of squares about it


class MomentsEpilogue(ConvEpilogue):
    """The last of `dtypes` is the states' output; the last value of `function` is what is measured, the others are
    written."""

    def __init__(
        self, shape: ConvShape, point: ConvPoint, dtypes: Sequence[str], *, reduction: ConvReduction, **more: Any
    ) -> None:
        super().__init__(shape, point, dtypes, **more)
        self.point = point
        self.together = chunk_tiles(shape, point.pixels)
        self.slots = slots(shape)
        self.written = [*self.written[:-1], _Measured(self.run, self.along)]  # type: ignore[list-item]

    def _vectors(self) -> dict[Triple, tuple[int, ...]]:
        """Without pairs of which some have no second."""
        found = super()._vectors()
        if not self.loose:
            return found
        self.loose = False
        return {part.first: (i,) for i, part in enumerate(self.parts)}

    def carried(self) -> list[Any]:
        """Since the chunk, or the sample, began: the pixels that a thread has met, and its channels' means and sums of
        squares."""
        found = [cute.make_rmem_tensor((size,), Float32) for size in (1, self.columns // 4, self.columns // 4)]
        self._clear(found)
        return found

    @staticmethod
    def _clear(carried: list[Any]) -> None:
        for own in carried:
            own.fill(0.0)

    def tile(self, rows: Any, turn: Any, outs: list[Any], operands: list[Any], odd: bool) -> None:
        """A tile, for each sample that it meets. `turn` as a PlacesEpilogue's."""
        work, warp, carried, (first, last), each, tiles = turn
        found = list(rows)
        after = work + 1
        end = after * self.point.pixels

        def one(sample: Any) -> None:
            for row in found:
                mine = m.both(row[2], row[1][0][0] == sample)
                when(mine, partial(self._measure, row, carried, outs, operands, odd))
            is_over = (sample + 1) * each <= end
            closes = m.either(after % self.together == 0, after == tiles)

            def close() -> None:
                self._close(carried, (sample, work // self.together, warp, each), found[0][1][1:], outs[-1], odd)
                self._clear(carried)

            when(m.either(is_over, closes), close)

        loop(first, last + 1, one)

    def _measure(self, row: Any, carried: list[Any], outs: list[Any], operands: list[Any], odd: bool) -> None:
        """A row's pixels are written and measured."""
        sums, place, _, scales = row
        for first, phases in self.vectors.items():

            def body(first: Triple = first, phases: tuple[int, ...] = phases) -> None:
                count = carried[0][0]
                shares = [Float32(1.0) / (count + float(j + 1)) for j in range(len(phases))]
                given = [*outs[:-1], (carried, shares)]
                self._leave((first, phases), sums, place, scales, given, operands, odd)
                carried[0][0] = count + float(len(phases))

            there = self._there_is(place[0], first)
            body() if there is None else when(there, body)

    def _close(self, carried: list[Any], where: tuple[Any, ...], column: tuple[Any, Any], out: Any, odd: bool) -> None:
        """Write what a chunk has of a sample; behind a sample's last chunk, that there is nothing more."""
        (sample, chunk, warp, each), (group, first) = where, column
        count, means, squares = carried
        rows = self.together * self.point.pixels
        slot = chunk - sample * each // rows
        ends = Int32((sample + 1) * each <= (chunk + 1) * rows)
        states = [(means[k], squares[k]) for k in range(self.columns // 4)]
        total, joined, leads = joined_lanes(count[0], states)
        columns = self.shape.groups * self.shape.columns
        for make in joined:
            state, number = make()
            channel = first + number // self.run * (4 * self.run) + number % self.run
            row = Int64(sample) * columns + group * self.shape.columns + channel
            start = row * self.slots * WARPS + warp
            apart = self.shape.batch * columns * self.slots * WARPS

            def put(at: Any, values: tuple[Any, ...], start: Any = start, apart: int = apart) -> None:
                for i, value in enumerate(values):
                    place = out.iterator + (start + at * WARPS + i * apart)
                    cute.make_tensor(place, cute.make_layout((1,)))[0] = value

            def write(state: State = state, put: Any = put) -> None:
                put(slot, (total, *state))
                last = slot + 1 + (self.slots - slot - 1) * ends
                loop(slot + 1, last, lambda at: put(at, (Float32(0.0),) * MOMENTS))

            test = channel < self.shape.columns if odd else None
            test = leads if test is None else test if leads is None else m.both(test, leads)
            write() if test is None else when(test, write)


class _Measured:
    """In the place of an output: values are measured as they would be stored."""

    dtype, walk = "f32", (0,) * 6

    def __init__(self, run: int, along: int) -> None:
        self.run, self.along = run, along

    def store(
        self, given: tuple[list[Any], list[Any]], _start: Any, channel: int, values: list[Any], _both: Any
    ) -> None:
        """`given`: what is carried, and by how much each of the pixels moves the mean."""
        (_, means, squares), shares = given
        number = channel // (4 * self.run) * self.run + channel % self.run
        for j, value in enumerate(values):
            i, share = (number + j, shares[0]) if self.along == _CHANNEL else (number, shares[j])
            off = value - means[i]
            means[i] = means[i] + off * share
            squares[i] = squares[i] + off * (value - means[i])


def joined_lanes(count: Any, states: list[State]) -> tuple[Any, list[Callable[[], tuple[State, Any]]], Any]:
    """Of each state the joined one of all lanes that have its channel: (their count; some of the states, each with its
    number, to be made one after the other, so that few are there at a time; whether this lane is the one that has them,
    None: each is). Lanes halve what they keep as long as that comes out even."""
    levels: list[tuple[Any, ...]] = []
    size, leads = len(states), None
    lane = cute.arch.lane_idx()
    for offset in _APART:
        upper, half = lane // offset % 2 == 1, 0 if size % 2 else size // 2
        total = count + cute.arch.shuffle_sync_bfly(count, offset=offset)
        share = (total - count) / m.select(total > Float32(0.0), total, Float32(1.0))
        levels.append((offset, half, upper, share, count * share))
        if half == 0:
            leads = m.negated(upper) if leads is None else m.both(leads, m.negated(upper))
        size, count = half or size, total

    def state(level: int, s: int) -> tuple[State, Any]:
        if level == 0:
            return states[s], Int32(s)
        offset, half, upper, share, weight = levels[level - 1]
        kept, number = state(level - 1, s)
        sent = kept
        if half:
            other, its = state(level - 1, s + half)
            kept, sent = _chosen(upper, other, kept), _chosen(upper, kept, other)
            number = m.select(upper, its, number)
        there = tuple(cute.arch.shuffle_sync_bfly(v, offset=offset) for v in sent)
        return _merged(kept, there, share, weight), number

    return count, [partial(state, len(levels), s) for s in range(size)], leads


def _chosen(test: Any, yes: State, no: State) -> State:
    return m.select(test, yes[0], no[0]), m.select(test, yes[1], no[1])


def _merged(a: State, b: tuple[Any, ...], share: Any, weight: Any) -> State:
    """`share`: b's of both counts; `weight`: that times a's."""
    off = b[0] - a[0]
    return a[0] + off * share, a[1] + b[1] + off * off * weight
