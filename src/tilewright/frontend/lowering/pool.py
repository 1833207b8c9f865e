"""Pooling as reductions over windows: a dimension for each side of the window joins those of the result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.access import Position

from .lower import FLOATS, Builder, Expr, Lowering, NotLowered, Number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Windows along one dimension: `count` of them, `size` positions each, over `length` positions."""

    length: int
    count: int
    size: int
    stride: int
    padding: int
    dilation: int = 1

    def position(self, along: int, within: int) -> Position:
        return Position(start=-self.padding, steps=((along, self.stride), (within, self.dilation)))

    def first(self, b: Builder, trailing: int) -> Expr | int:
        """Where each window starts, with `trailing` dimensions of size 1 behind."""
        if self.count == 1:
            return -self.padding
        place = b.index(self.count).reshape((self.count,) + (1,) * trailing).to("i32")
        return place * self.stride - self.padding if self.padding else place * self.stride

    def clamped(self, place: Expr) -> Expr:
        """The position itself, or the window's first one inside where it lies before the start."""
        if not self.padding:
            return place
        if self.dilation == 1:
            return place.do("maximum", 0)
        return (place < 0).where(place.do("remainder", self.dilation), place)

    @property
    def uneven(self) -> bool:
        """Whether the last window ends beyond the padding."""
        return (self.count - 1) * self.stride + self.size > self.length + 2 * self.padding

    def covered(self, b: Builder, trailing: int, *, with_padding: bool) -> Expr | int:
        """How many positions of each window count: those of the input, or of the input and its padding; with `trailing`
        dimensions of size 1 behind, from the start, so that no two sides share a value."""
        if self.count == 1:  # one window alone
            low, high = -self.padding, self.size - self.padding
            edge = self.length + self.padding if with_padding else self.length
            return min(high, edge) - (low if with_padding else max(low, 0))
        if not self.uneven and (with_padding or not self.padding):
            return self.size
        place = b.index(self.count).reshape((self.count,) + (1,) * trailing).to("i32")
        first = place * self.stride - self.padding
        last = (first + self.size).do("minimum", self.length + (self.padding if with_padding else 0))
        return last - (first if with_padding else first.do("maximum", 0))


def each_side(values: Sequence[int] | int, rank: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """One value a side, from one for all or one for each."""
    given = tuple([values] if isinstance(values, int) else values) or tuple(default)
    return given * rank if len(given) == 1 else given


def _windowed(b: Builder, x: Expr, sides: Sequence[_Side], fill: Number) -> tuple[Expr, tuple[int, ...]]:
    """`x` with the windows' own dimensions last, and which these are."""
    lead, rank = len(x.shape) - len(sides), len(sides)
    shape = (*x.shape[:lead], *(s.count for s in sides), *(s.size for s in sides))
    at = [Position(steps=((d, 1),)) for d in range(lead)]
    at += [side.position(lead + i, lead + rank + i) for i, side in enumerate(sides)]
    return b.load(x, shape, at, fill), tuple(range(lead + rank, lead + 2 * rank))


def _places(b: Builder, windows: Expr, over: Sequence[int], sides: Sequence[_Side]) -> Expr:
    """Where torch finds each window's maximum, i64, in the sides flattened row-major: the last NaN, else the first of
    the largest; the first position inside where there is nothing but -inf. One sweep together with the maximum."""
    found = windows.reduce("argmax", over)
    if all(side.size == 1 for side in sides):
        within = found.to("i32")
    else:
        own = b.index(math.prod(windows.shape[d] for d in over)).reshape([windows.shape[d] for d in over]).to("i32")
        last_nan = windows.do("isnan").where(own, -1).reduce("max", over)
        within = (last_nan >= 0).where(last_nan, found.to("i32"))
    if all(side.count == 1 and side.size == side.length for side in sides):
        return within.to("i64")
    wide = math.prod(side.length for side in sides) >= 2**31
    place: Expr | None = None
    for i, side in enumerate(sides):
        inner = math.prod(s.size for s in sides[i + 1 :])
        step = within if inner == 1 else within.do("floor_divide", inner)
        step = step if i == 0 else step.do("remainder", side.size)
        step = step if side.dilation == 1 else step * side.dilation
        at = side.clamped(step + side.first(b, len(sides) - 1 - i))
        at = at.to("i64") if wide else at
        place = at if place is None else place * side.length + at
    assert place is not None
    return place.to("i64")


def _max_pool(rank: int) -> Lowering:
    def lower(b: Builder, x: Expr, kernel_size: Sequence[int], stride: Sequence[int] = (),
              padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,),
              ceil_mode: bool = False) -> tuple[Expr, Expr] | Expr:  # fmt: skip
        if x.dtype not in FLOATS:
            raise NotLowered
        size = each_side(kernel_size, rank)
        sides = [
            _Side(length=length, count=count, size=k, stride=s, padding=p, dilation=d)
            for length, count, k, s, p, d in zip(
                x.shape[-rank:], b.outs[0].shape[-rank:], size, each_side(stride, rank, size), each_side(padding, rank),
                each_side(dilation, rank), strict=True)
        ]  # fmt: skip
        windows, over = _windowed(b, x, sides, -math.inf)
        best = windows.reduce("max", over)
        return best if len(b.outs) == 1 else (best, _places(b, windows, over, sides))

    return lower


def _avg_pool(rank: int) -> Lowering:
    def lower(b: Builder, x: Expr, kernel_size: Sequence[int], stride: Sequence[int] = (),
              padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
              divisor_override: int | None = None) -> Expr:  # fmt: skip
        if x.dtype not in FLOATS:
            raise NotLowered
        size = each_side(kernel_size, rank)
        sides = [
            _Side(length=length, count=count, size=k, stride=s, padding=p)
            for length, count, k, s, p in zip(x.shape[-rank:], b.outs[0].shape[-rank:], size,
                                              each_side(stride, rank, size), each_side(padding, rank), strict=True)
        ]  # fmt: skip
        windows, over = _windowed(b, x, sides, 0.0)
        total = windows.wide().reduce("sum", over)
        if divisor_override is not None:
            return total / divisor_override
        return total / _area(b, sides, with_padding=count_include_pad)

    return lower


def _area(b: Builder, sides: Sequence[_Side], *, with_padding: bool) -> Expr | int:
    """How many elements each window has, shaped to broadcast over the sides."""
    area: Expr | int = 1
    for i, side in enumerate(sides):
        covered = side.covered(b, len(sides) - 1 - i, with_padding=with_padding)
        area = covered * area if isinstance(covered, Expr) else area * covered
    return area


def _adaptive(op: str, rank: int) -> Lowering:
    """Windows that are all of one size, side by side; or one alone, which is a plain reduction."""

    def lower(b: Builder, x: Expr, output_size: Sequence[int]) -> tuple[Expr, Expr] | Expr:
        lengths, counts = x.shape[-rank:], b.outs[0].shape[-rank:]
        if x.dtype not in FLOATS or any(length % count for length, count in zip(lengths, counts, strict=True)):
            raise NotLowered
        sides = [_Side(length=length, count=count, size=length // count, stride=length // count, padding=0)
                 for length, count in zip(lengths, counts, strict=True)]  # fmt: skip
        if all(count == 1 for count in counts):
            windows, over = x, tuple(range(len(x.shape) - rank, len(x.shape)))
        else:
            windows, over = _windowed(b, x, sides, 0.0)
        if op == "max":
            best = windows.reduce("max", over).reshape(tuple(b.outs[0].shape))
            if len(b.outs) == 1:
                return best
            return best, _places(b, windows, over, sides).reshape(tuple(b.outs[0].shape))
        total = windows.wide().reduce("sum", over).reshape(tuple(b.outs[0].shape))
        return total / (math.prod(lengths) // math.prod(counts))

    return lower


POOL_LOWERINGS: Mapping[str, Lowering] = {
    **{f"max_pool{rank}d": _max_pool(rank) for rank in (1, 2, 3)},
    **{f"max_pool{rank}d_with_indices": _max_pool(rank) for rank in (1, 2, 3)},
    **{f"avg_pool{rank}d": _avg_pool(rank) for rank in (1, 2, 3)},
    **{f"adaptive_avg_pool{rank}d": _adaptive("avg", rank) for rank in (1, 2, 3)},
    **{f"adaptive_max_pool{rank}d": _adaptive("max", rank) for rank in (1, 2, 3)},
}
