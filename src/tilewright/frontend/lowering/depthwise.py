"""Depthwise convolution as sums over windows of each channel, times the channel's weights; with channel multipliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.access import Position
from tilewright.ir.graph import channels_last

from .lower import FLOATS, Builder, Expr, Lowering, NotLowered, memory_order
from .pool import each_side

MOST_TAPS = 128  # weights of a result: what a kernel does with one window is written out
MOST_MULTIPLIER = 4  # results of a channel


def _depthwise(rank: int) -> Lowering:
    def lower(
        b: Builder, x: Expr, weight: Expr, bias: Expr | None = None, stride: Sequence[int] = (1,),
        padding: Sequence[int] | str = (0,), dilation: Sequence[int] = (1,), groups: int = 1,
    ) -> Expr:  # fmt: skip
        given = len(x.shape) == rank + 2 and x.dtype in FLOATS and weight.dtype == x.dtype
        if not given or groups == 1 or groups != x.shape[1]:
            raise NotLowered
        if not 1 < prod(weight.shape[2:]) <= MOST_TAPS or weight.shape[0] > MOST_MULTIPLIER * groups:
            raise NotLowered
        counts, apart, within = b.outs[0].shape[2:], each_side(stride, rank), each_side(dilation, rank)
        before = _before(padding, weight.shape[2:], within)
        order = memory_order(b.outs[0])
        along = _Windows(counts, apart, before, within)
        if memory_order(b.ins[0]) != order:
            raise NotLowered
        if order == channels_last(rank + 2) and weight.shape[0] == groups:
            total = _last(b, x, weight, along)
        elif not order:
            total = _first(b, x, weight, along)
        else:
            raise NotLowered
        return total if bias is None else total + bias.reshape((bias.shape[0], *(1 for _ in counts))).wide()

    return lower


@dataclass(frozen=True, slots=True)
class _Windows:
    """One number for each side: how many windows, how far apart, zeros before the first, and steps within one."""

    counts: Sequence[int]
    apart: Sequence[int]
    before: Sequence[int]
    within: Sequence[int]

    def positions(self, along: int, inside: int) -> list[Position]:
        """Of the sides, where windows lie along the dimensions from `along` on, and their elements from `inside` on."""
        return [
            Position(start=-self.before[i], steps=((along + i, self.apart[i]), (inside + i, self.within[i])))
            for i in range(len(self.counts))
        ]


def _first(b: Builder, x: Expr, weight: Expr, windows: _Windows) -> Expr:
    """Of an image that lies channel by channel."""
    (images, channels, *_), (made, _, *taps), rank = x.shape, weight.shape, len(windows.counts)
    at = [Position(steps=((0, 1),)), Position(steps=((1, 1),)), *windows.positions(3, 3 + rank)]
    values = b.load(x, (images, channels, 1, *windows.counts, *taps), at, 0.0).wide()
    factors = weight.reshape((1, channels, made // channels, *(1 for _ in taps), *taps)).wide()
    return (values * factors).reduce("sum", range(3 + rank, 3 + 2 * rank)).reshape((images, made, *windows.counts))


def _last(b: Builder, x: Expr, weight: Expr, windows: _Windows) -> Expr:
    """Of an image in which the channels of a pixel lie side by side; so do those of the result."""
    (images, channels, *_), (_, _, *taps), rank = x.shape, weight.shape, len(windows.counts)
    at = [Position(steps=((0, 1),)), Position(steps=((rank + 1, 1),)), *windows.positions(1, rank + 2)]
    values = b.load(x, (images, *windows.counts, channels, *taps), at, 0.0).wide()
    factors = weight.reshape((1, *(1 for _ in taps), channels, *taps)).wide()
    total = (values * factors).reduce("sum", range(rank + 2, 2 * rank + 2))
    return total.permute((0, rank + 1, *range(1, rank + 1)))


def _before(padding: Sequence[int] | str, taps: Sequence[int], within: Sequence[int]) -> tuple[int, ...]:
    """How many zeros lie before each side; of an odd number of them, as many as torch has there."""
    if isinstance(padding, str):
        return tuple(
            (step * (tap - 1)) // 2 if padding == "same" else 0 for tap, step in zip(taps, within, strict=True)
        )
    return each_side(padding, len(taps))


DEPTHWISE_LOWERINGS: Mapping[str, Lowering] = {f"conv{rank}d": _depthwise(rank) for rank in (1, 2)}
