"""Epilogues of convolutions that reduce (see `reduction`): what is written is what becomes of the channels of a pixel,
of the pixels of a window, or of all pixels of a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from ..common import math as m
from ..common.control import loop, when
from ..common.spec import Function, reads
from ..rows.combine import Held, butterfly
from ..rows.reducers import Reducer, State, tree
from .epilogue import _LAST, ConvEpilogue, EpilogueOperand, Sums, _Walked
from .gather import Gather
from .reduction import WARPS, ConvReduction, chunk_tiles, slots
from .shape import ConvShape, Triple
from .tiles import ConvPoint

LANES = 4  # of a warp, that share a pixel
_APART = (4, 8, 16)  # lanes that have the same channels of other pixels
Element = dict[str, Any]


class ReducedEpilogue(ConvEpilogue):
    """A ConvEpilogue of a ConvReduction; one output."""

    def __init__(
        self, shape: ConvShape, point: ConvPoint, dtypes: Sequence[str], *, reduction: ConvReduction,
        operands: Sequence[EpilogueOperand] = (), **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(shape, point, dtypes, operands=operands, **more)
        self.reduction, self.point = reduction, point
        self.walks = {o.name: (i, o.walk, o.each) for i, o in enumerate(operands)}
        self.reducers = [
            [Reducer(op=r.op, source=r.source, dtype=r.dtype) for r in sweep.reductions] for sweep in reduction.sweeps
        ]
        unknown = {name for name in self._read_of(reduction.sweeps[0].elements) if name not in self.walks}
        if unknown:
            raise ValueError(f"a reduction reads {', '.join(sorted(unknown))}, which is no operand of it")

    @staticmethod
    def _read_of(*functions: Function | None) -> list[str]:
        """The operands that functions read, and results of other functions."""
        return list(dict.fromkeys(n for f in functions for n in reads(f) if n != "product"))

    def _channels(self, column: Any) -> list[tuple[int, Any]]:
        """Of this thread the number of each sum of a pixel, and its channel."""
        run = self.run
        return [
            (n * run + j, column + (n * 4 * run + j)) for n in range(self.columns // 4 // run) for j in range(run)
        ]  # fmt: skip

    def _factor(self, scales: tuple[Any, Any], channel: Any) -> Any:
        return None if scales[0] is None else scales[1][channel] * scales[0]

    def _scaled(self, sums: Sums, phase: int, number: int, factor: Any) -> Any:
        value = sums(phase, number)
        return value if factor is None else value * factor

    def _loaded(self, name: str, operands: list[Any], place: tuple[Any, ...], channel: Any, group: Any = 0) -> Any:
        """An operand's element. `place`: (sample, place along each dimension), which exist."""
        i, walk, each = self.walks[name]
        start = Int64(0)
        channel = channel if each == 1 else channel // each
        for step, index in zip(walk, (place[0], group, channel, *place[1:]), strict=True):
            start = start + Int64(index) * step if step else start
        value = cute.make_tensor(operands[i].iterator + start, cute.make_layout((1,)))[0]
        return value.to(Float32) if type(value).is_float else value

    def _element(
        self, names: Iterable[str], operands: list[Any], place: tuple[Any, ...], channel: Any, group: Any = 0
    ) -> Element:
        return {name: self._loaded(name, operands, place, channel, group) for name in names if name in self.walks}

    def _near(self, channel: Any, odd: bool) -> Any:
        """The channel, or the last one instead of one behind it."""
        return cutlass.min(channel, Int32(self.shape.columns - 1)) if odd else channel

    def _places(self, at: tuple[Any, ...], first: Triple, more: int = 0) -> tuple[Any, ...]:
        """(sample, place along each dimension) of the pixel that is `more` behind a phase's first; one that does not
        exist is another's."""
        places = [o * s + f for o, s, f in zip(at[1:], self.shape.spread, first, strict=True)]
        places[2] = places[2] + more
        near = [
            cutlass.max(cutlass.min(o, Int32(n - 1)), Int32(0)) for o, n in zip(places, self.shape.out, strict=True)
        ]  # fmt: skip
        return (at[0], *near)


def scattered(
    values: list[Any], join: Callable[[Any, Any], Any], offsets: Sequence[int]
) -> tuple[list[Any], list[Any], Any]:
    """Of each value the joined one of all lanes `offsets` apart: (some of them, their numbers, whether this lane is the
    one that has them). Lanes halve what they keep as long as that comes out even."""
    numbers: list[Any] = [Int32(i) for i in range(len(values))]
    leads: Any = None
    lane = cute.arch.lane_idx()
    for offset in offsets:
        upper = lane // offset % 2 == 1
        half = len(values) // 2
        if len(values) % 2:
            values = [join(v, cute.arch.shuffle_sync_bfly(v, offset=offset)) for v in values]
            lower = m.negated(upper)
            leads = lower if leads is None else m.both(leads, lower)
            continue
        pairs = list(zip(values[:half], values[half:], strict=True))
        sent = [m.select(upper, low, high) for low, high in pairs]
        kept = [m.select(upper, high, low) for low, high in pairs]
        values = [join(k, cute.arch.shuffle_sync_bfly(s, offset=offset)) for k, s in zip(kept, sent, strict=True)]
        both_numbers = zip(numbers[:half], numbers[half:], strict=True)
        numbers = [m.select(upper, high, low) for low, high in both_numbers]
    return values, numbers, leads


class ChannelEpilogue(ReducedEpilogue):
    """The channels of a pixel, reduced."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        _, o1, o2 = self.shape.out
        walk = (prod(self.shape.out), 0, 0, o1 * o2, o2, 1)
        self.neighbours = self.piece if self.along == _LAST else 1  # pixels
        self.numbers = [_Walked(dtype, walk, self.neighbours, _LAST, wide=not self.loose) for dtype in self.dtypes]
        self.all_read = self._read_of(
            self.reduction.head, self.reduction.final,
            *(f for s in self.reduction.sweeps for f in (s.elements, s.rows)),
        )  # fmt: skip

    def tile(self, rows: Any, _turn: Any, outs: list[Any], operands: list[Any], odd: bool) -> None:
        """All rows that a thread has; lanes of a row meet, so that none waits for another behind a test."""
        for sums, place, inside, scales in rows:
            for first, phases in self.vectors.items():
                there = self._there_is(place[0], first)
                ok = inside if there is None else m.both(inside, there)
                self._pixels((first, phases), sums, place, scales, outs, operands, (odd, ok))

    def _pixels(
        self, phases: tuple[Triple, tuple[int, ...]], sums: Sums, place: tuple[Any, Any, Any], scales: tuple[Any, Any],
        outs: list[Any], operands: list[Any], tests: tuple[bool, Any],
    ) -> None:  # fmt: skip
        """Neighbouring pixels, which leave together."""
        (first, numbers), (odd, ok), (at, group, column) = phases, tests, place
        channels = self._channels(column)
        near = [self._near(channel, odd) for _, channel in channels]
        valid = [channel < self.shape.columns if odd else None for _, channel in channels]
        factors = [self._factor(scales, channel) for channel in near]
        same = [n for n in self.all_read if n in self.walks and not any(self.walks[n][1][d] for d in (0, 3, 4, 5))]
        shared = [self._element(same, operands, (0, 0, 0, 0), channel) for channel in near]
        made = []
        for j, phase in enumerate(numbers):
            there = self._places(at, first, j)
            others = [n for n in self.all_read if n not in same]
            elements = [
                {"product": self._scaled(sums, phase, number, factor), **own,
                 **self._element(others, operands, there, channel)}
                for (number, _), factor, own, channel in zip(channels, factors, shared, near, strict=True)
            ]  # fmt: skip
            made.append((elements, self._reduced(elements, valid)))
        both = self._is_second(at, first) if self.loose else None
        if self.reduction.final is None:
            start = self._start(self.numbers[0].walk, first, at, group, column)
            values = [m.stored(own[self.reduction.row], self.dtypes[0]) for _, own in made]
            write = partial(self.numbers[0].store, outs[0], start, 0, values, both)
            when(m.both(ok, cute.arch.lane_idx() % LANES == 0), write)
            return
        start = self._start(self.written[0].walk, first, at, group, column)
        when(ok, partial(self._write, made, channels, (outs[0], start, column), odd, both))

    def _write(
        self, made: list[tuple[list[Element], Element]], channels: list[tuple[int, Any]], out: tuple[Any, Any, Any],
        odd: bool, both: Any,
    ) -> None:  # fmt: skip
        """Every element, by as many neighbours as a store takes: pixels, or channels."""
        final = self.reduction.final
        assert final is not None
        tensor, start, column = out
        step = 1 if self.along == _LAST else self.piece
        run = self.run
        for i in range(0, len(channels), step):
            values = [
                m.stored(_call(final, elements[i + j], own), self.dtypes[0])
                for elements, own in made for j in range(step)
            ]  # fmt: skip
            offset = i // run * 4 * run + i % run
            write = partial(self.written[0].store, tensor, start, offset, values, both)
            when(column + offset < self.shape.columns, write) if odd else write()

    def _reduced(self, elements: list[Element], valid: list[Any]) -> Element:
        """What is known of a pixel, of whose channels this lane has these."""
        values: Element = {}
        if self.reduction.head is not None:
            values |= _call(self.reduction.head, elements[0], values)
        for sweep, reducers in zip(self.reduction.sweeps, self.reducers, strict=True):
            given = [_call(sweep.elements, element, values) for element in elements]
            for i, (reduction, reducer) in enumerate(zip(sweep.reductions, reducers, strict=True)):
                state = self._state(reducer, [reducer.prepare(g[i]) for g in given], valid)
                values |= zip(reduction.results, reducer.results(state), strict=True)
            if sweep.rows is not None:
                values |= _call(sweep.rows, elements[0], values)
        return values

    def _state(self, reducer: Reducer, values: list[Any], valid: list[Any]) -> State:
        if reducer.op != "moments":
            held = Held(reducer, 1)
            held[0] = reducer.block(_masked(values, valid, reducer.identity()[0]), None, [])
            butterfly(held, LANES)
            return held[0]
        # How many there are is known, and nothing is divided.
        count, nought = float(self.shape.columns), Float32(0.0)
        mean = _total(_masked(values, valid, nought)) * Float32(1.0 / count)
        squares = [(v - mean) * (v - mean) for v in values]
        return (Float32(count), mean, _total(_masked(squares, valid, nought)))


class WindowEpilogue(ReducedEpilogue):
    """The pixels of a window, reduced for each channel."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        window = self.reduction.window
        self.by_phases = self.shape.spread != (1, 1, 1)
        self.pairs = not self.by_phases  # a thread's two rows are two pixels of one window
        self.phases = tuple(range(len(self.parts))) if self.by_phases else (0, 1)
        self.offsets = () if self.by_phases else tuple(x for x in _APART if x < 2 * prod(window))
        sizes = tuple(n // w for n, w in zip(self.shape.out, window, strict=True))
        pooled, (_, o1, o2) = prod(sizes), sizes
        self.walk = (self.shape.columns * pooled, 0, pooled, o1 * o2, o2, 1)
        ((self.reducer,),) = self.reducers

    def gather(self, shape: ConvShape, walk: tuple[int, ...], item: int) -> Gather:
        """Pixels, numbered window by window."""
        return WindowGather(shape, walk, item, window=self.reduction.window)

    def tile(self, rows: Any, _turn: Any, outs: list[Any], operands: list[Any], odd: bool) -> None:
        """All rows that a thread has."""
        for sums, (at, _, column), inside, scales in rows:
            window = (1, 1, 1) if self.by_phases else self.reduction.window
            place = (at[0], *(o // w for o, w in zip(at[1:], window, strict=True)))
            if self.by_phases:  # of a grid's place that is no output's, another's operands are read
                sizes = zip(place[1:], self.shape.out, self.shape.spread, strict=True)
                place = (at[0], *(cutlass.min(o, Int32(n // s - 1)) for o, n, s in sizes))
            found = [
                self._pooled(sums, place, (number, self._near(channel, odd)), scales, operands)
                for number, channel in self._channels(column)
            ]  # fmt: skip
            self._leave_windows(found, (place, column, inside), outs[0], operands, odd)

    def _pooled(
        self, sums: Sums, place: tuple[Any, ...], own: tuple[int, Any], scales: tuple[Any, Any], operands: list[Any]
    ) -> Any:
        """What this thread's pixels come to, of one channel."""
        number, channel = own
        sweep = self.reduction.sweeps[0]
        factor = self._factor(scales, channel)
        known = self._element(self._read_of(self.reduction.head, sweep.elements), operands, place, channel)
        values = {} if self.reduction.head is None else _call(self.reduction.head, known, {})
        taken = []
        for phase in self.phases:
            element = known | {"product": self._scaled(sums, phase, number, factor)}
            taken.append(self.reducer.prepare(_call(sweep.elements, element, values)[0]))
        return tree(taken, partial(_merged, self.reducer))

    def _leave_windows(
        self, found: list[Any], where: tuple[tuple[Any, ...], Any, Any], out: Any, operands: list[Any], odd: bool
    ) -> None:
        """Join what the lanes of a window have, and write it."""
        place, column, inside = where
        found, numbers, leads = scattered(found, partial(_merged, self.reducer), self.offsets)
        ok = inside if leads is None else m.both(inside, leads)
        for value, number in zip(found, numbers, strict=True):
            channel = column + number // self.run * (4 * self.run) + number % self.run
            test = m.both(ok, channel < self.shape.columns) if odd else ok
            when(test, partial(self._put, value, (*place, channel), out, operands))

    def _put(self, value: Any, where: tuple[Any, ...], out: Any, operands: list[Any]) -> None:
        *place, channel = where
        (sweep,) = self.reduction.sweeps
        values: Element = dict(zip(sweep.reductions[0].results, self.reducer.results((value,)), strict=True))
        known = self._element(self._read_of(self.reduction.head, sweep.rows), operands, tuple(place), channel)
        if self.reduction.head is not None:
            values |= _call(self.reduction.head, known, values)
        if sweep.rows is not None:
            values |= _call(sweep.rows, known, values)
        start = Int64(0)
        for step, index in zip(self.walk, (place[0], 0, channel, *place[1:]), strict=True):
            start = start + Int64(index) * step if step else start
        made = m.stored(values[self.reduction.row], self.dtypes[0])
        cute.make_tensor(out.iterator + start, cute.make_layout((1,)))[0] = made


class WindowGather(Gather):
    """Pixels are numbered window by window."""

    def __init__(self, shape: ConvShape, walk: tuple[int, ...], item: int, *, window: Triple) -> None:
        super().__init__(shape, walk, item)
        self.window = window

    def pixel(self, number: Any) -> tuple[Any, Any, Any, Any]:
        """(sample, place along each dimension) of a pixel; of one behind the last that one's."""
        w0, w1, w2 = self.window
        sizes = [n // w for n, w in zip(self.shape.out, self.window, strict=True)]
        number = cutlass.min(number, Int32(self.shape.pixels - 1))
        inside, whole = number % (w0 * w1 * w2), number // (w0 * w1 * w2)
        line, last = whole // sizes[2], whole % sizes[2]
        plane = line // sizes[1]
        return (
            plane // sizes[0], plane % sizes[0] * w0 + inside // (w1 * w2), line % sizes[1] * w1 + inside // w2 % w1,
            last * w2 + inside % w2,
        )  # fmt: skip


class PlacesEpilogue(ReducedEpilogue):
    """All pixels of a sample, reduced for each channel over chunks of tiles."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        if self.parts:
            self.loose = False
            self.vectors = {part.first: (i,) for i, part in enumerate(self.parts)}  # type: ignore[assignment]
        self.together = chunk_tiles(self.shape, self.point.pixels)
        self.slots = slots(self.shape)
        (self.joined,) = self.reducers

    def carried(self) -> list[Any]:
        """What a thread has of each channel and reduction since the chunk, or the sample, began."""
        found = [cute.make_rmem_tensor((self.columns // 4,), reducer.types[0]) for reducer in self.joined]
        self._clear(found)
        return found

    def _clear(self, carried: list[Any]) -> None:
        for reducer, own in zip(self.joined, carried, strict=True):
            own.fill(reducer.identity()[0])

    def tile(self, rows: Any, turn: Any, outs: list[Any], operands: list[Any], odd: bool) -> None:
        """A tile, for each sample that it meets. `turn`: (the tile's number, the warp's, what is carried, the samples
        of the tile's first and last row, rows of a sample, tiles in all)."""
        work, warp, carried, (first, last), each, tiles = turn
        found = list(rows)
        after = work + 1
        end = after * self.point.pixels

        def one(sample: Any) -> None:
            for row in found:
                self._add(row, sample, carried, operands, odd)
            is_over = (sample + 1) * each <= end
            closes = m.either(after % self.together == 0, after == tiles)

            def close() -> None:
                self._close(carried, (sample, work // self.together, warp, each), found[0][1][1:], outs[0], odd)
                self._clear(carried)

            when(m.either(is_over, closes), close)

        loop(first, last + 1, one)

    def _add(self, row: Any, sample: Any, carried: list[Any], operands: list[Any], odd: bool) -> None:
        """A row's pixels, where they are this sample's."""
        sums, (at, group, column), inside, scales = row
        mine = m.both(inside, at[0] == sample)
        sweep = self.reduction.sweeps[0]
        head = self.reduction.head
        names = self._read_of(head, sweep.elements)
        for i, (number, channel) in enumerate(self._channels(column)):
            near = self._near(channel, odd)
            factor = self._factor(scales, near if self.shape.groups == 1 else group * self.shape.columns + near)
            for first, phases in self.vectors.items():
                there = self._there_is(at, first)
                ok = mine if there is None else m.both(mine, there)
                for j, phase in enumerate(phases):
                    element = self._element(names, operands, self._places(at, first, j), near, group)
                    element["product"] = self._scaled(sums, phase, number, factor)
                    values = {} if head is None else _call(head, element, {})
                    made = _call(sweep.elements, element, values)
                    for reducer, own, value in zip(self.joined, carried, made, strict=True):
                        neutral = reducer.identity()[0]
                        value = m.select(ok, reducer.prepare(value), neutral)
                        own[i] = _merged(reducer, own[i], value)

    def _close(self, carried: list[Any], where: tuple[Any, ...], first: tuple[Any, Any], out: Any, odd: bool) -> None:
        """Write what a chunk has of a sample; behind a sample's last chunk, that there is nothing more."""
        (sample, chunk, warp, each), (group, column) = where, first
        rows = self.together * self.point.pixels
        slot = chunk - sample * each // rows
        ends = Int32((sample + 1) * each <= (chunk + 1) * rows)
        for i, (reducer, own) in enumerate(zip(self.joined, carried, strict=True)):
            values = [own[k] for k in range(self.columns // 4)]
            values, numbers, leads = scattered(values, partial(_merged, reducer), _APART)
            for value, number in zip(values, numbers, strict=True):
                channel = column + number // self.run * (4 * self.run) + number % self.run
                row = Int64(sample + i * self.shape.batch) * (self.shape.groups * self.shape.columns) + channel
                row = row if self.shape.groups == 1 else row + group * self.shape.columns
                first = out.iterator + (row * self.slots * WARPS + warp)

                def put(at: Any, what: Any, first: Any = first) -> None:
                    cute.make_tensor(first + at * WARPS, cute.make_layout((1,)))[0] = what

                def write(value: Any = value, put: Any = put, reducer: Any = reducer) -> None:
                    put(slot, value)
                    last = slot + 1 + (self.slots - slot - 1) * ends
                    loop(slot + 1, last, lambda at: put(at, reducer.identity()[0]))

                test = channel < self.shape.columns if odd else None
                test = leads if test is None else test if leads is None else m.both(test, leads)
                write() if test is None else when(test, write)


def _merged(reducer: Reducer, a: Any, b: Any) -> Any:
    """Of a state of one component."""
    (joined,) = reducer.merge((a,), (b,))
    return joined


def _masked(values: list[Any], valid: list[Any], otherwise: Any) -> list[Any]:
    """`otherwise` in the place of what is not valid."""
    return [v if ok is None else m.select(ok, v, otherwise) for v, ok in zip(values, valid, strict=True)]


def _total(values: list[Any]) -> Any:
    """The sum over these and those of the lanes that share a pixel."""
    total = tree(values, lambda a, b: a + b)
    for offset in (1, 2):
        total = total + cute.arch.shuffle_sync_bfly(total, offset=offset)
    return total


def _call(function: Function, element: Element, values: Element) -> Any:
    """`function` of what it names: an element's, or what is known already."""
    return function(**{name: values[name] if name in values else element[name] for name in reads(function)})
