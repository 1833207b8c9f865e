"""Depthwise convolution as sums over windows of each channel, times the channel's weights; with channel multipliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.ir.access import Position

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
        if not given or groups == 1 or groups != x.shape[1] or memory_order(b.outs[0]):
            raise NotLowered
        if not 1 < prod(weight.shape[2:]) <= MOST_TAPS or weight.shape[0] > MOST_MULTIPLIER * groups:
            raise NotLowered
        (images, channels, *_), (made, _, *taps) = x.shape, weight.shape
        each, counts = made // channels, b.outs[0].shape[2:]
        apart, within = each_side(stride, rank), each_side(dilation, rank)
        before = _before(padding, taps, within)
        windows = (images, channels, 1, *counts, *taps)
        at = [Position(steps=((0, 1),)), Position(steps=((1, 1),))]
        for side in range(rank):
            steps = (3 + side, apart[side]), (3 + rank + side, within[side])
            at.append(Position(start=-before[side], steps=steps))
        values = b.load(x, windows, at, 0.0).wide()
        factors = weight.reshape((1, channels, each, *(1 for _ in counts), *taps)).wide()
        total = (values * factors).reduce("sum", range(3 + rank, 3 + 2 * rank)).reshape((images, made, *counts))
        return total if bias is None else total + bias.reshape((made, *(1 for _ in counts))).wide()

    return lower


def _before(padding: Sequence[int] | str, taps: Sequence[int], within: Sequence[int]) -> tuple[int, ...]:
    """How many zeros lie before each side; of an odd number of them, as many as torch has there."""
    if isinstance(padding, str):
        return tuple(
            (step * (tap - 1)) // 2 if padding == "same" else 0 for tap, step in zip(taps, within, strict=True)
        )
    return each_side(padding, len(taps))


DEPTHWISE_LOWERINGS: Mapping[str, Lowering] = {f"conv{rank}d": _depthwise(rank) for rank in (1, 2)}
