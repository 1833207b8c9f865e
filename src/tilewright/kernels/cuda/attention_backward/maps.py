"""The map of a score and of its weight's gradient, element by element: rendered functions over both, positions and
operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Float32, Int32, Int64, cute

from ..attention.scores import ScoreOperand
from ..attention.softmax import row_of
from ..common import math as m
from ..common.spec import Function, reads
from .shape import GradientShape

_POSITION = "index_"
_FLOATS = ("f32", "f16", "bf16")
_PRODUCTS = ("score", "gradient")


class GradientMap:
    """`whole` gives (weight, gradient of the score, further results ..); `inner` the same where all is visible.
    `by_keys`: a thread's rows are keys, and its columns queries."""

    def __init__(
        self, shape: GradientShape, functions: tuple[Function, Function], operands: Sequence[ScoreOperand], *,
        by_keys: bool, tile_n: int,
    ) -> None:  # fmt: skip
        self.shape, self.tile_n = shape, tile_n
        self.whole, self.inner = functions
        self.operands = {o.name: (i, o) for i, o in enumerate(operands)}
        rank = len(shape.domain)
        self.row, self.column = (rank - 1, rank - 2) if by_keys else (rank - 2, rank - 1)
        for function in functions:
            known = (*_PRODUCTS, *self.operands)
            unknown = [n for n in reads(function) if n not in known and not n.startswith(_POSITION)]
            if unknown:
                raise ValueError(f"the map reads {', '.join(unknown)}, which is no operand of it")

    def apply(
        self, tiles: tuple[Any, Any, Any], at: tuple[dict[int, Any], Sequence[Any], Any], given: Sequence[Any], *,
        masked: bool, further: int,
    ) -> None:  # fmt: skip
        """Scores become weights, and weight gradients those of scores; further result number `further`, where that is
        one, is added to the third tile. `at`: the indices of the batch, the thread's rows, and its first column."""
        scores, gradients, added = tiles
        indices, rows, first = at
        count = self.shape.domain[self.column]
        function, behind = (self.whole if masked else self.inner), count % self.tile_n > 0
        loaded: dict[tuple[object, ...], Any] = {}
        for i in range(cute.size(scores)):
            r, column = row_of(i), first + (i // 4 * 8 + i % 2)
            products = {"score": scores[i], "gradient": Float32(0.0) if gradients is None else gradients[i]}
            places = {**indices, self.row: rows[r], self.column: column}
            seen = lambda name: self._read(name, places, (r, i // 4 * 2 + i % 2), given, loaded)  # noqa: B023, E731
            made = function(**{n: products[n] if n in products else seen(n) for n in reads(function)})
            made = [m.cast(x, "f32") for x in made]
            if behind and masked:  # its factors are zeros there, but what they meet must be finite
                made = [m.select(column < count, x, Float32(0.0)) for x in made]
            scores[i] = made[0]
            if gradients is not None:
                gradients[i] = made[1]
            if further >= 0:
                added[i] = added[i] + made[2 + further]

    def _read(
        self, name: str, places: dict[int, Any], own: tuple[int, int], given: Sequence[Any],
        loaded: dict[tuple[object, ...], Any],
    ) -> Any:  # fmt: skip
        """A position, or an operand's element, which is loaded once for all that share it."""
        if name.startswith(_POSITION):
            return places.get(int(name.removeprefix(_POSITION)), Int32(0))
        number, operand = self.operands[name]
        key = (name, own[0] if operand.strides[self.row] else None, own[1] if operand.strides[self.column] else None)
        if key not in loaded:
            offset = Int64(0)
            for d, stride in enumerate(operand.strides):
                if stride:
                    inside = places[d]
                    if d >= len(self.shape.batch):  # behind the last the last's
                        inside = m.smaller(inside, Int32(self.shape.domain[d] - 1))
                    offset = offset + Int64(inside) * stride
            spot = cute.make_tensor(given[number].iterator + offset, cute.make_layout((1,)))
            loaded[key] = m.cast(spot[0], "f32") if operand.dtype in _FLOATS else spot[0]
        return loaded[key]
