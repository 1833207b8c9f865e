"""From sums in registers to an output: a row of the product is a pixel. Of (n, g, co, o) threads that are neighbours
along rows write neighbours in memory; of (n, o, g, co) a thread has up to 8 neighbouring channels, which it reads and
writes by 16 bytes, and four threads have four times as many."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from cutlass import Float32, Int64, cute

from ..common import math as m
from ..common.control import when
from ..common.spec import Function, reads
from ..common.views import ITEM_BYTES
from .shape import ConvShape, Triple
from .tiles import ConvPoint, run_of

BLOCK = 16  # elements whose operands are asked for before any is written, where these are few; twice, channels last
MOST_READ = 64  # registers that hold what is asked for, else
KEPT = 40  # registers of a thread for all else
WORD = 4  # bytes
LINE = 16  # bytes at whose multiples tensors begin
Walk = tuple[int, ...]


class ConvEpilogue:
    """`function` over `product` and the operands of these `names` and `types`, or None; it gives one value for each of
    `dtypes`, a tuple where those are several. `walks`: of each operand the strides along (n, g, co, three spatial
    dimensions), 0 where it is broadcast; outputs are contiguous, with channels innermost where they are
    `channels_last`. Where outputs of a phase are written, its o is `first` + o spread."""

    def __init__(
        self, shape: ConvShape, point: ConvPoint, dtypes: Sequence[str], *, function: Function | None = None,
        operands: Sequence[tuple[str, str, Walk]] = (), first: Triple = (0, 0, 0), channels_last: bool = False,
    ) -> None:  # fmt: skip
        self.shape, self.dtypes, self.function, self.first = shape, tuple(dtypes), function, first
        self.names = tuple(name for name, _, _ in operands)
        unknown = set(reads(function)) - {"product", *self.names}
        if unknown:
            raise ValueError(f"an epilogue reads {', '.join(sorted(unknown))}, which is no operand of it")
        self.wanted = [i for i, name in enumerate(self.names) if name in reads(function)]
        _, o1, o2 = shape.out
        channel, pixel = (1, shape.groups * shape.columns) if channels_last else (prod(shape.out), 1)
        inner = (o1 * o2 * pixel, o2 * pixel, pixel)
        written = (shape.groups * shape.columns * prod(shape.out), shape.columns * channel, channel, *inner)
        self.run = run_of(point.columns, channels_last=channels_last)
        # Neighbours that one access takes: a divisor of the channels, so that all or none lie behind the last.
        self.piece = next(w for w in (8, 4, 2, 1) if self.run % w == shape.columns % w == 0) if channels_last else 1
        self.written = [_Walked(dtype, written, self.piece) for dtype in self.dtypes]
        self.read = [_Walked(dtype, walk, self.piece) for _, dtype, walk in operands]
        held = sum(max(self.piece * ITEM_BYTES[self.read[i].dtype] // WORD, 1) for i in self.wanted)
        spare = point.registers[1] - point.sums - KEPT if channels_last else MOST_READ
        self.at_once = max(1, min(BLOCK // self.piece * (2 if channels_last else 1), spare // max(held, 1)))

    def row(
        self, total: Any, r: int, place: tuple[Any, Any, Any], scales: tuple[Any, Any], outs: list[Any],
        operands: list[Any], odd: bool,
    ) -> None:  # fmt: skip
        """One pixel's sums that a thread has: `run` neighbouring channels of every 4 `run`. `place`: (the pixel, the
        group, the first channel); `scales`: the sample's factor and the channels', or None; `odd`: some channels lie
        behind the last."""
        at, group, column = place
        begins = [self._start(walked.walk, at, group, column) for walked in (*self.written, *self.read)]
        starts = begins[: len(self.written)], begins[len(self.written) :]
        runs = range(cute.size(total) // 2 // self.run)
        pieces = [(n * self.run + j, n * 4 * self.run + j) for n in runs for j in range(0, self.run, self.piece)]
        for begin in range(0, len(pieces), self.at_once):
            some = pieces[begin : begin + self.at_once]
            if not odd:
                self._some(total, r, some, starts, (group, column), scales, outs, operands)
                continue
            for piece in some:
                when(
                    column + piece[1] < self.shape.columns,
                    lambda piece=piece: self._some(
                        total, r, [piece], starts, (group, column), scales, outs, operands
                    ),
                )  # fmt: skip

    def _start(self, walk: Walk, at: tuple[Any, ...], group: Any, column: Any) -> Any:
        n, *own = at
        places = [o if s == 1 else o * s + p for o, s, p in zip(own, self.shape.spread, self.first, strict=True)]
        start = Int64(0)
        for step, index in zip(walk, (n, group, column, *places), strict=True):
            start = start + Int64(index) * step if step else start
        return start

    def _some(
        self, total: Any, r: int, pieces: list[tuple[int, int]], starts: tuple[list[Any], list[Any]],
        channel: tuple[Any, Any], scales: tuple[Any, Any], outs: list[Any], operands: list[Any],
    ) -> None:  # fmt: skip
        """Read what these pieces need, then write them; each is (the number of its first sum, its first channel)."""
        group, column = channel
        own = {i: [self.read[i].load(operands[i], starts[1][i], c) for _, c in pieces] for i in self.wanted}
        factors: list[Any] = [None] * len(pieces)
        if scales[0] is not None:
            first = Int64(group * self.shape.columns + column)
            of_channels = _Walked("f32", (0, 0, 1, 0, 0, 0), self.piece)
            factors = [[f * scales[0] for f in of_channels.load(scales[1], first, c)] for _, c in pieces]
        for number, ((begin, c), factor) in enumerate(zip(pieces, factors, strict=True)):
            made = []
            for j in range(self.piece):
                value = total[(((begin + j) % 2, r, (begin + j) // 2), 0, 0)]
                value = value if factor is None else value * factor[j]
                made.append(self._value(value, {self.names[i]: own[i][number][j] for i in self.wanted}))
            for n, (out, walked) in enumerate(zip(outs, self.written, strict=True)):
                walked.store(out, starts[0][n], c, [m.stored(one[n], walked.dtype) for one in made])

    def _value(self, product: Any, loaded: dict[str, Any]) -> tuple[Any, ...]:
        if self.function is None:
            return (product,)
        known = {"product": product}
        known |= {name: x.to(Float32) if type(x).is_float else x for name, x in loaded.items()}
        made = self.function(**{name: known[name] for name in reads(self.function)})
        return tuple(made) if len(self.dtypes) > 1 else (made,)


class _Walked:
    """A tensor's elements along the channels, `piece` neighbours at a time."""

    def __init__(self, dtype: str, walk: Walk, piece: int) -> None:
        self.dtype, self.walk, self.piece = dtype, walk, piece
        others = (step for d, step in enumerate(walk) if d != 2)
        self.wide = piece > 1 and walk[2] == 1 and dtype != "bool" and not any(step % piece for step in others)
        self.align = min(piece * ITEM_BYTES[dtype], LINE)

    def load(self, tensor: Any, start: Any, channel: int) -> list[Any]:
        if self.walk[2] == 0:
            return [self._there(tensor, start, 0)[0]] * self.piece
        if not self.wide:
            return [self._there(tensor, start, channel + j)[0] for j in range(self.piece)]
        held = cute.make_rmem_tensor((self.piece,), tensor.element_type)
        cute.autovec_copy(self._together(tensor, start, channel), held)
        return [held[j] for j in range(self.piece)]

    def store(self, tensor: Any, start: Any, channel: int, values: list[Any]) -> None:
        if not self.wide:
            for j, value in enumerate(values):
                self._there(tensor, start, channel + j)[0] = value
            return
        held = cute.make_rmem_tensor((self.piece,), tensor.element_type)
        for j, value in enumerate(values):
            held[j] = value
        cute.autovec_copy(held, self._together(tensor, start, channel))

    def _there(self, tensor: Any, start: Any, channel: int) -> Any:
        return cute.make_tensor(tensor.iterator + (start + channel * self.walk[2]), cute.make_layout((1,)))

    def _together(self, tensor: Any, start: Any, channel: int) -> Any:
        first = tensor.iterator + (start + channel)
        return cute.make_tensor(first.align(self.align), cute.make_layout((self.piece,)))
