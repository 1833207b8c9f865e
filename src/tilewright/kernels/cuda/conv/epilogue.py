"""From sums in registers to an output: a row of the product is a pixel. Of (n, g, co, o) threads that are neighbours
along rows write neighbours in memory; of (n, o, g, co) a thread has up to 8 neighbouring channels, which it reads and
writes by 16 bytes, and four threads have four times as many. Of several phases a thread has the same pixel's, which are
neighbours along the last dimension; of (n, g, co, o) they leave as one vector. So do pairs of pixels, where a thread
has those: what is read for a channel is then read once for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

from cutlass import Float32, Int32, Int64, cute

from ..common import math as m
from ..common.control import when
from ..common.spec import Function, reads
from ..common.views import ITEM_BYTES
from .gather import Gather
from .phases import ConvPart
from .ptx import store_pair
from .shape import ConvShape, Triple
from .tiles import ConvPoint, run_of

BLOCK = 16  # elements whose operands are asked for before any is written, where these are few; twice, channels last
MOST_READ = 64  # registers that hold what is asked for, else
KEPT = 40  # registers of a thread for all else
WORD = 4  # bytes
LINE = 16  # bytes at whose multiples tensors begin
_PAIRED_BYTES = 4  # of an element, where pairs begin anywhere
Walk = tuple[int, ...]
Sums = Callable[[int, int], Any]  # a thread's sum of a phase, by its number
_CHANNEL, _LAST = 2, 5  # of a Walk


class EpilogueOperand(NamedTuple):
    """An operand of an epilogue. `walk`: its strides along (n, g, co, three spatial dimensions), 0 where it is
    broadcast; `each`: neighbouring channels that have one element."""

    name: str
    dtype: str
    walk: Walk
    each: int = 1


class ConvEpilogue:
    """`function` over `product` and the `operands` by name, or None; it gives one value for each of `dtypes`, a tuple
    where those are several. Outputs are contiguous, with channels innermost where they are `channels_last`. Where
    outputs of a phase are written, its o is `first` + o spread; of several phases these are the `parts`, and no
    `first`. Where `gather` writes lines of an even length, a thread's two rows are pixels 2i and 2i + 1 (`pairs`):
    they stand for phases."""

    together = 1  # neighbouring tiles that a CTA has one after the other

    def __init__(
        self, shape: ConvShape, point: ConvPoint, dtypes: Sequence[str], *, function: Function | None = None,
        operands: Sequence[EpilogueOperand] = (), first: Triple = (0, 0, 0), channels_last: bool = False,
        parts: tuple[ConvPart, ...] = (),
    ) -> None:  # fmt: skip
        self.shape, self.dtypes, self.function, self.columns = shape, tuple(dtypes), function, point.columns
        self.parts = parts
        alone = point.kernel == "gather" and not channels_last and shape.spread == (1, 1, 1)
        self.pairs = alone and shape.out[2] % 2 == 0
        self.names = tuple(o.name for o in operands)
        unknown = set(reads(function)) - {"product", *self.names}
        if unknown:
            raise ValueError(f"an epilogue reads {', '.join(sorted(unknown))}, which is no operand of it")
        self.wanted = [i for i, name in enumerate(self.names) if name in reads(function)]
        _, o1, o2 = shape.out
        channel, pixel = (1, shape.groups * shape.columns) if channels_last else (prod(shape.out), 1)
        inner = (o1 * o2 * pixel, o2 * pixel, pixel)
        written = (shape.groups * shape.columns * prod(shape.out), shape.columns * channel, channel, *inner)
        self.run = run_of(point.columns, channels_last=channels_last)
        self.along = _CHANNEL if channels_last else _LAST
        self.loose = False  # whether pairs of phases begin anywhere, and some are without a second
        self.vectors = self._vectors() if parts else {first: (0, 1) if self.pairs else (0,)}
        # Neighbours that one access takes: phases, or channels, a divisor of them, so that all or none lie behind the
        # last.
        self.piece = len(next(iter(self.vectors.values())))
        if channels_last:
            self.piece = next(w for w in (8, 4, 2, 1) if self.run % w == shape.columns % w == 0)
        self.written = [_Walked(dtype, written, self.piece, self.along, wide=not self.loose) for dtype in self.dtypes]
        wide = channels_last  # only then they begin at multiples of LINE
        self.read = [_Walked(o.dtype, o.walk, self.piece, self.along, wide=wide) for o in operands]
        self.each = {i: o.each for i, o in enumerate(operands) if o.each > 1}
        held = sum(max(self.piece * ITEM_BYTES[self.read[i].dtype] // WORD, 1) for i in self.wanted)
        spare = point.registers[1] - point.sums - KEPT if channels_last else MOST_READ
        self.at_once = max(1, min(BLOCK // self.piece * (2 if channels_last else 1), spare // max(held, 1)))

    def _vectors(self) -> dict[Triple, tuple[int, ...]]:
        """The phases' numbers by their first output, together those that are neighbours along the last dimension, as
        many as a store takes."""
        items = [ITEM_BYTES[dtype] for dtype in self.dtypes]
        number = {part.first: i for i, part in enumerate(self.parts)}
        count, size = len({last for *_, last in number}), self.shape.out[2]
        width = 1
        if self.along == _LAST and count == self.shape.spread[2]:
            most = LINE // max(items)
            width = next(w for w in (4, 2, 1) if w == 1 or (w <= most and count % w == size % w == 0))
            self.loose = width == 1 and count % 2 == 0 and set(items) == {_PAIRED_BYTES}
            width = 2 if self.loose else width
        return {
            (one, two, last): tuple(number[one, two, last + i] for i in range(width))
            for one, two, last in sorted(number) if last % width == 0
        }  # fmt: skip

    def gather(self, shape: ConvShape, walk: tuple[int, ...], item: int) -> Gather:
        """Which pixel each row of a tile is, where windows are gathered."""
        return Gather(shape, walk, item)

    def carried(self) -> list[Any]:
        """What a thread keeps from one tile to the next."""
        return []

    def tile(self, rows: Any, _turn: Any, outs: list[Any], operands: list[Any], odd: bool) -> None:
        """All `rows` of a tile that a thread has: of each its sums, its place, whether there is one, and factors."""
        for sums, place, inside, scales in rows:
            when(inside, partial(self.row, sums, place, scales, outs, operands, odd))

    def row(
        self, sums: Sums, place: tuple[Any, Any, Any], scales: tuple[Any, Any], outs: list[Any], operands: list[Any],
        odd: bool,
    ) -> None:  # fmt: skip
        """One pixel's sums that a thread has: `run` neighbouring channels of every 4 `run`. `place`: (the pixel, the
        group, the first channel); `scales`: the sample's factor and the channels', or None; `odd`: some channels lie
        behind the last."""
        for first, phases in self.vectors.items():
            body = partial(self._leave, (first, phases), sums, place, scales, outs, operands, odd)
            there = self._there_is(place[0], first)
            body() if there is None else when(there, body)

    def _there_is(self, at: tuple[Any, ...], first: Triple) -> Any:
        """Whether a phase has an output at a place; None where it has one at each."""
        found = None
        for d, (spread, out) in enumerate(zip(self.shape.spread, self.shape.out, strict=True)):
            own, *others = (-(-(out - f[d]) // spread) for f in (first, *self.vectors))
            tests = [at[1 + d] > 0] if first[d] < 0 else []
            tests += [at[1 + d] < own] if own < max(others) else []
            for one in tests:
                found = one if found is None else m.both(found, one)
        return found

    def _is_second(self, at: tuple[Any, ...], first: Triple) -> Any:
        """Whether the second of a pair of phases has an output at a place, 1 or 0."""
        spread, out = self.shape.spread[2], self.shape.out[2]
        return Int32(at[3] < -(-(out - first[2] - 1) // spread))

    def _leave(
        self, phases: tuple[Triple, tuple[int, ...]], sums: Sums, place: tuple[Any, Any, Any],
        scales: tuple[Any, Any], outs: list[Any], operands: list[Any], odd: bool,
    ) -> None:  # fmt: skip
        """The same, of phases that leave together."""
        at, group, column = place
        columns = [*(column for _ in self.written), *(0 if i in self.each else column for i in range(len(self.read)))]
        begins = [
            self._start(walked.walk, phases[0], at, group, c)
            for walked, c in zip((*self.written, *self.read), columns, strict=True)
        ]
        starts = begins[: len(self.written)], begins[len(self.written) :]
        step = self.piece if self.along == _CHANNEL else 1
        pieces = [
            (n * self.run + j, n * 4 * self.run + j)
            for n in range(self.columns // 4 // self.run) for j in range(0, self.run, step)
        ]  # fmt: skip
        both = self._is_second(at, phases[0]) if self.loose else None
        write = partial(self._some, (phases[1], both), sums, starts, (group, column), scales, outs, operands)
        for begin in range(0, len(pieces), self.at_once):
            some = pieces[begin : begin + self.at_once]
            if not odd:
                write(some)
                continue
            for piece in some:
                when(column + piece[1] < self.shape.columns, partial(write, [piece]))

    def _start(self, walk: Walk, first: Triple, at: tuple[Any, ...], group: Any, column: Any) -> Any:
        n, *own = at
        places = [o if s == 1 else o * s + p for o, s, p in zip(own, self.shape.spread, first, strict=True)]
        start = Int64(0)
        for step, index in zip(walk, (n, group, column, *places), strict=True):
            start = start + Int64(index) * step if step else start
        return start

    def _some(
        self, phases: tuple[tuple[int, ...], Any], sums: Sums, starts: tuple[list[Any], list[Any]],
        channel: tuple[Any, Any], scales: tuple[Any, Any], outs: list[Any], operands: list[Any],
        pieces: list[tuple[int, int]],
    ) -> None:  # fmt: skip
        """Read what these pieces need, then write them; each is (the number of its first sum, its first channel)."""
        (numbers, both), (group, column) = phases, channel
        own: dict[int, list[list[Any]]] = {}
        for i in self.wanted:  # of what channels share the place is known with the channel
            places = [(column + c) // self.each[i] if i in self.each else c for _, c in pieces]
            own[i] = [self.read[i].load(operands[i], starts[1][i], c, both) for c in places]
        factors: list[Any] = [None] * len(pieces)
        if scales[0] is not None:
            first = Int64(group * self.shape.columns + column)
            of_channels = _Walked("f32", (0, 0, 1, 0, 0, 0), self.piece, self.along)
            factors = [[f * scales[0] for f in of_channels.load(scales[1], first, c)] for _, c in pieces]
        for number, ((begin, c), factor) in enumerate(zip(pieces, factors, strict=True)):
            made = []
            for j in range(self.piece):
                value = sums(numbers[0], begin + j) if self.along == _CHANNEL else sums(numbers[j], begin)
                value = value if factor is None else value * factor[j]
                made.append(self._value(value, {self.names[i]: own[i][number][j] for i in self.wanted}))
            for n, (out, walked) in enumerate(zip(outs, self.written, strict=True)):
                walked.store(out, starts[0][n], c, [m.stored(one[n], walked.dtype) for one in made], both)

    def _value(self, product: Any, loaded: dict[str, Any]) -> tuple[Any, ...]:
        if self.function is None:
            return (product,)
        known = {"product": product}
        known |= {name: x.to(Float32) if type(x).is_float else x for name, x in loaded.items()}
        made = self.function(**{name: known[name] for name in reads(self.function)})
        return tuple(made) if len(self.dtypes) > 1 else (made,)


class _Walked:
    """A tensor's elements, `piece` neighbours `along` a dimension of its walk at a time; `wide`: by vectors, where they
    lie so and it begins at a multiple of LINE."""

    def __init__(self, dtype: str, walk: Walk, piece: int, along: int, *, wide: bool = True) -> None:
        self.dtype, self.walk, self.piece, self.along = dtype, walk, piece, along
        others = (step for d, step in enumerate(walk) if d != along)
        lies_so = piece > 1 and walk[along] == 1 and dtype != "bool" and not any(step % piece for step in others)
        self.wide = wide and lies_so
        self.align = min(piece * ITEM_BYTES[dtype], LINE)

    def load(self, tensor: Any, start: Any, channel: Any, both: Any = None) -> list[Any]:
        """`both`: of loose pairs, whether there is a second, 1 or 0; else the first stands for it."""
        if self.walk[self.along] == 0:
            return [self._there(tensor, start, channel, 0)[0]] * self.piece
        if both is not None:
            return [self._there(tensor, start, channel, j)[0] for j in (0, both)]
        if not self.wide:
            return [self._there(tensor, start, channel, j)[0] for j in range(self.piece)]
        held = cute.make_rmem_tensor((self.piece,), tensor.element_type)
        cute.autovec_copy(self._together(tensor, start, channel), held)
        return [held[j] for j in range(self.piece)]

    def store(self, tensor: Any, start: Any, channel: int, values: list[Any], both: Any) -> None:
        """`both`: of loose pairs, whether there is a second."""
        if both is not None:
            offset = start + channel * self.walk[_CHANNEL]
            store_pair(tensor.iterator.toint() + offset * ITEM_BYTES[self.dtype], values, both)
            return
        if not self.wide:
            for j, value in enumerate(values):
                self._there(tensor, start, channel, j)[0] = value
            return
        held = cute.make_rmem_tensor((self.piece,), tensor.element_type)
        for j, value in enumerate(values):
            held[j] = value
        cute.autovec_copy(held, self._together(tensor, start, channel))

    def _there(self, tensor: Any, start: Any, channel: int, j: Any) -> Any:
        offset = channel * self.walk[_CHANNEL] + j * self.walk[self.along]
        return cute.make_tensor(tensor.iterator + (start + offset), cute.make_layout((1,)))

    def _together(self, tensor: Any, start: Any, channel: int) -> Any:
        first = tensor.iterator + (start + channel * self.walk[_CHANNEL])
        return cute.make_tensor(first.align(self.align), cute.make_layout((self.piece,)))
