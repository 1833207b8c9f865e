"""What a module makes of its scores, element by element: rendered functions over `score`, positions and operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, Int64, cute

from ..common import math as m
from ..common.spec import Function, reads
from .shape import AttentionShape
from .softmax import row_of

_POSITION = "index_"
_FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOperand:
    """An operand with its strides along the dimensions of the scores, 0 where it is broadcast."""

    name: str
    dtype: str
    strides: tuple[int, ...]


class ScoreMap:
    """`whole` gives the score, minus infinity where it is not visible; `inner` the same where all are; None: the
    product itself. Keys behind the last become `outside`."""

    def __init__(
        self, shape: AttentionShape, tile_n: int, functions: tuple[Function | None, Function | None],
        operands: Sequence[ScoreOperand], outside: float,
    ) -> None:  # fmt: skip
        self.shape, self.tile_n, self.outside = shape, tile_n, outside
        self.whole, self.inner = functions
        self.operands = {o.name: (i, o) for i, o in enumerate(operands)}
        for function in functions:
            wanted = () if function is None else reads(function)
            unknown = [n for n in wanted if n != "score" and n not in self.operands and not n.startswith(_POSITION)]
            if unknown:
                raise ValueError(f"scores read {', '.join(unknown)}, which is no operand of them")

    def apply(
        self, scores: Any, at: tuple[dict[int, Any], Sequence[Any], Any], given: Sequence[Any], *, masked: bool,
        scale: Any = None,
    ) -> None:  # fmt: skip
        """Products become scores. `at`: the indices of the batch, the thread's rows, and its first key; `scale`: what
        products are multiplied with first."""
        function = self.whole if masked else self.inner
        behind = masked and self.shape.keys % self.tile_n > 0
        if function is None and not behind and scale is None:
            return
        indices, rows, first = at
        loaded: dict[tuple[object, ...], Any] = {}
        for i in range(cute.size(scores)):
            r, key = row_of(i), first + (i // 4 * 8 + i % 2)
            value = scores[i] if scale is None else scores[i] * scale
            if function is not None:
                places = {**indices, self.shape.row: rows[r], len(self.shape.domain) - 1: key}
                seen = lambda name: self._read(name, places, (r, i // 4 * 2 + i % 2), given, loaded)  # noqa: B023, E731
                value = function(**{n: value if n == "score" else seen(n) for n in reads(function)})
                value = m.cast(value, "f32")
            scores[i] = m.select(key < self.shape.keys, value, Float32(self.outside)) if behind else value

    def holds(self, places: dict[int, Any], given: Sequence[Any]) -> Any:
        """What `whole` says of one place, where it reads no score."""
        assert self.whole is not None
        return self.whole(**{n: self._read(n, places, (0, 0), given, {}) for n in reads(self.whole)})

    def sink(self, name: str, places: dict[int, Any], given: Sequence[Any]) -> Any:
        """An operand that is a score by itself, of a row."""
        return m.cast(self._read(name, {**places, len(self.shape.domain) - 1: Int32(0)}, (0, 0), given, {}), "f32")

    def _read(
        self, name: str, places: dict[int, Any], own: tuple[int, int], given: Sequence[Any],
        loaded: dict[tuple[object, ...], Any],
    ) -> Any:  # fmt: skip
        """A position, or an operand's element, which is loaded once for all scores that share it."""
        if name.startswith(_POSITION):
            return places.get(int(name.removeprefix(_POSITION)), Int32(0))
        number, operand = self.operands[name]
        last, row = len(operand.strides) - 1, self.shape.row
        key = (name, own[0] if operand.strides[row] else None, own[1] if operand.strides[last] else None)
        if key not in loaded:
            offset = Int64(0)
            for d, stride in enumerate(operand.strides):
                if stride:
                    offset = offset + Int64(self._inside(d, places)) * stride
            spot = cute.make_tensor(given[number].iterator + offset, cute.make_layout((1,)))
            loaded[key] = m.cast(spot[0], "f32") if operand.dtype in _FLOATS else spot[0]
        return loaded[key]

    def _inside(self, d: int, places: dict[int, Any]) -> Any:
        """The index along a dimension, of what lies behind the last the last's."""
        if d == self.shape.row:
            return m.smaller(places[d], Int32(self.shape.rows - 1))
        if d == len(self.shape.domain) - 1:
            return m.smaller(places[d], Int32(self.shape.keys - 1))
        return places.get(d, Int32(0))
