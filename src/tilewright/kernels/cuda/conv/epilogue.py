"""From sums in registers to an output (n, g, co, o): a row of the product is a pixel, so threads that are neighbours
along rows write neighbours in memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from cutlass import Float32, Int64, cute

from ..common import math as m
from ..common.control import when
from ..common.spec import Function, reads
from .shape import ConvShape, Triple

BLOCK = 8  # pairs of channels whose operands are asked for before any is written


class ConvEpilogue:
    """`function` over `product` and the operands of these `names`, or None; it gives one value for each of `dtypes`, a
    tuple where those are several. `walks`: of each operand the strides along (n, g, co, three spatial dimensions), 0
    where it is broadcast; outputs are contiguous. Where outputs of a phase are written, its o is `first` + o spread."""

    def __init__(
        self, shape: ConvShape, dtypes: Sequence[str], *, function: Function | None = None, names: Sequence[str] = (),
        walks: Sequence[tuple[int, ...]] = (), first: Triple = (0, 0, 0),
    ) -> None:  # fmt: skip
        self.shape, self.dtypes, self.function = shape, tuple(dtypes), function
        self.names, self.walks, self.first = tuple(names), tuple(walks), first
        unknown = set(reads(function)) - {"product", *names}
        if unknown:
            raise ValueError(f"an epilogue reads {', '.join(sorted(unknown))}, which is no operand of it")
        _, o1, o2 = shape.out
        inner = (o1 * o2, o2, 1)
        channel = prod(shape.out)
        self.written = (shape.groups * shape.columns * channel, shape.columns * channel, channel, *inner)

    def row(
        self, total: Any, r: int, place: tuple[Any, Any, Any], scales: tuple[Any, Any], outs: list[Any],
        operands: list[Any], odd: bool,
    ) -> None:  # fmt: skip
        """One pixel's sums that a thread has: pairs of neighbouring channels, every 8. `place`: (the pixel, the group,
        the first channel of the first pair); `scales`: the sample's factor and the channels', or None; `odd`: some
        channels lie behind the last."""
        at, group, column = place
        pairs = cute.size(total) // 4
        starts = [self._start(walk, at, group, column) for walk in (self.written, *self.walks)]
        for first in range(0, pairs, BLOCK):
            numbers = [(q, e) for q in range(first, min(first + BLOCK, pairs)) for e in range(2)]
            if not odd:
                self._some(total, r, numbers, starts, (group, column), scales, outs, operands)
                continue
            for q, e in numbers:
                when(
                    column + (q * 8 + e) < self.shape.columns,
                    lambda q=q, e=e: self._some(
                        total, r, [(q, e)], starts, (group, column), scales, outs, operands
                    ),
                )  # fmt: skip

    def _start(self, walk: tuple[int, ...], at: tuple[Any, ...], group: Any, column: Any) -> Any:
        n, *own = at
        places = [o if s == 1 else o * s + p for o, s, p in zip(own, self.shape.spread, self.first, strict=True)]
        start = Int64(0)
        for step, index in zip(walk, (n, group, column, *places), strict=True):
            start = start + Int64(index) * step if step else start
        return start

    def _some(
        self, total: Any, r: int, numbers: list[tuple[int, int]], starts: list[Any], channel: tuple[Any, Any],
        scales: tuple[Any, Any], outs: list[Any], operands: list[Any],
    ) -> None:  # fmt: skip
        """Read what these elements need, then write them."""
        group, column = channel
        offsets = [q * 8 + e for q, e in numbers]
        wanted = [i for i, name in enumerate(self.names) if name in reads(self.function)]
        read = {i: [self._there(operands[i], starts[1 + i], self.walks[i][2], c)[0] for c in offsets] for i in wanted}
        factors: list[Any] = [None] * len(numbers)
        if scales[0] is not None:
            first = Int64(group * self.shape.columns + column)
            factors = [self._there(scales[1], first, 1, c)[0] * scales[0] for c in offsets]
        for number, ((q, e), factor) in enumerate(zip(numbers, factors, strict=True)):
            value = total[((e, r, q), 0, 0)]
            value = value if factor is None else value * factor
            made = self._value(value, {self.names[i]: read[i][number] for i in wanted})
            for out, one, dtype in zip(outs, made, self.dtypes, strict=True):
                self._there(out, starts[0], self.written[2], offsets[number])[0] = m.stored(one, dtype)

    @staticmethod
    def _there(tensor: Any, start: Any, step: int, channel: int) -> Any:
        return cute.make_tensor(tensor.iterator + (start + channel * step), cute.make_layout((1,)))

    def _value(self, product: Any, loaded: dict[str, Any]) -> tuple[Any, ...]:
        if self.function is None:
            return (product,)
        known = {"product": product}
        known |= {name: x.to(Float32) if type(x).is_float else x for name, x in loaded.items()}
        made = self.function(**{name: known[name] for name in reads(self.function)})
        return tuple(made) if len(self.dtypes) > 1 else (made,)
