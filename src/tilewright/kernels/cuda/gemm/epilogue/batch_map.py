"""Where what is broadcast over a part of a dimension is read: a matrix for several of a batch, a table's row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Int32, cute

from ...common.math import select

Part = tuple[int, int]  # (each, count): at position i it is read at i // each % count; with a count of 0 at i // each
Parts = tuple[Part | None, Part | None, Part | None]
Layers = tuple[Part | None, Part | None]


def part_of(size: int, whole: int, each: int) -> Part | None:
    """Of what has `size` along a dimension of `whole`, for `each` neighbours the same; None where it is read at the
    position itself, or is one for all."""
    return None if size in (1, whole) else (each, 0 if size * each == whole else size)


def placed(at: Any, part: Part | None) -> Any:
    """Where it is read for this position."""
    if part is None:
        return at
    each, count = part
    at = at if each == 1 else at // each
    return at % count if count else at


class BatchMap:
    """Of a product: `parts` of each of its epilogue's operands along its rows, columns and layers; `layers` of the
    matrices that make it, A's and B's, along its layers. Of one with `swap_ab` rows are the operands' columns."""

    def __init__(
        self, names: Sequence[str], *, swap_ab: bool, parts: Sequence[Parts] = (), layers: Layers = (None, None)
    ) -> None:
        self.layers = layers
        own = zip(names, parts, strict=False)
        self.parts = {n: (p[1], p[0], p[2]) if swap_ab else p for n, p in own if any(p)}

    def placed(self, name: str, at: tuple[Any, Any, Any]) -> tuple[Any, ...]:
        """Where an operand is read for the element at this place."""
        return tuple(placed(i, part) for i, part in zip(at, self.parts.get(name, (None,) * 3), strict=True))

    def separates(self, name: str) -> bool:
        """Whether pairs of neighbouring columns are not always neighbours in an operand."""
        part = self.parts.get(name, (None,) * 3)[1]
        return part is not None and (part[0] > 1 or part[1] % 2 == 1)

    def layer_of(self, side: int, layer: Any, x: Any, *, planes: int = 1) -> Any:
        """The first plane of the matrix of x, A (side 0) or B, that makes this layer: its own, or the one of all."""
        if self.layers[side] is None:
            return select(cute.size(x, mode=[2]) > planes, layer * planes, Int32(0))
        return placed(layer, self.layers[side]) * planes

    def exponents_of(self, side: int, layer: Any, exponents: Any) -> Any:
        """Which of a factor's exponents are of this layer; where parts of K have their own, all layers have."""
        own = self.layers[side]
        return layer % cute.size(exponents, mode=[1]) if own is None else placed(layer, own)
