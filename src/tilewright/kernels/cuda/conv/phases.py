"""The phases of a strided transposed convolution: plain numbers, no CUDA.

Outputs of equal remainder by `spread` are a phase. It has taps of its own, and is a convolution of stride 1 whose
outputs lie `spread` apart. Phases are computed by a kernel each, or by one that reads x once for several of them:

    apart    a kernel each
    last     those along the last dimension by one kernel
    plane    those along the last two
    all      all

What one kernel computes has the union of its phases' windows, along each dimension in ascending order. Each phase has
sums of its own, to which the windows are added that it has taps for, so no number meets a weight that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import gcd, prod

from .shape import ConvShape, Triple

MERGED: dict[str, tuple[int, ...]] = {"apart": (), "last": (2,), "plane": (1, 2), "all": (0, 1, 2)}  # dimensions
MOST_MERGED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPart:
    """A phase among several of one kernel: outputs `first` + o spread, those of them that exist. `taps`: of each its
    number in w, and its window's number among the taps of the kernel's shape."""

    first: Triple
    taps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPhase:
    """What one kernel computes, as a convolution of stride 1. With `parts` these are its phases. Without, it is one:
    outputs `first` + o spread, whose tap t is number `tap` + t `every` of the whole."""

    shape: ConvShape
    first: Triple = (0, 0, 0)
    tap: Triple = (0, 0, 0)
    every: Triple = (1, 1, 1)
    parts: tuple[ConvPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Several phases along one dimension: the windows' start, step and number, how many outputs a phase has at most,
    and of each its first output and its (tap, window)s."""

    start: int
    step: int
    taps: int
    out: int
    phases: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


@lru_cache(256)
def phases(shape: ConvShape, merged: str = "apart") -> tuple[ConvPhase, ...]:
    """All kernels of a convolution: one, if its `spread` is 1. Raises ValueError where phases can't be `merged` so."""
    if shape.spread == (1, 1, 1) and merged == "apart":
        return (ConvPhase(shape=shape),)
    if merged == "apart":
        return tuple(_alone(shape, first) for first in _firsts(shape, ()))
    dims = MERGED[merged]
    if shape.spread[dims[0]] == 1:
        raise ValueError(f"along dimension {dims[0]} of three there is one phase alone")
    return tuple(_together(shape, dims, first) for first in _firsts(shape, dims))


def _firsts(shape: ConvShape, merged: tuple[int, ...]) -> Iterable[Triple]:
    """Of each kernel the phase along each dimension; 0 along those of which it has all."""
    sizes = zip(shape.spread, shape.out, strict=True)
    return product(*(range(1 if d in merged else min(own)) for d, own in enumerate(sizes)))  # type: ignore[return-value]


def _alone(shape: ConvShape, first: Triple) -> ConvPhase:
    """A phase for a kernel of its own. Where it meets no tap it has a channel of zeros."""
    taps, every, start, step, count, out = zip(*(_along(shape, d, first[d]) for d in range(3)), strict=True)
    empty = any(begin == -shape.image[d] - shape.out[d] for d, begin in enumerate(start))
    channels = 1 if empty else shape.channels
    own = replace(
        shape, channels=channels, taps=count, start=start, step=step, out=out, spread=(1, 1, 1),
        channels_inside=shape.channels_inside and not empty,
    )  # fmt: skip
    return ConvPhase(shape=own, first=first, tap=taps, every=every)  # type: ignore[arg-type]


def _along(shape: ConvShape, d: int, first: int) -> tuple[int, int, int, int, int, int]:
    """Of a phase along one dimension: its first tap, how far taps are apart, start, step, taps and outputs. One that
    meets no tap has one that lies outside of x."""
    spread, step, start = shape.spread[d], shape.step[d], shape.start[d]
    every = spread // gcd(spread, abs(step))
    own = [t for t in range(shape.taps[d]) if (first + start + t * step) % spread == 0]
    out = -(-(shape.out[d] - first) // spread)
    if not own:
        return 0, 1, -shape.image[d] - shape.out[d], 1, 1, out
    return own[0], every, (first + start + own[0] * step) // spread, every * step // spread, len(own), out


def _together(shape: ConvShape, merged: tuple[int, ...], first: Triple) -> ConvPhase:
    """All phases along these dimensions, at one along the others."""
    axes = [_axis(shape, d) if d in merged else _windows(shape, d, (first[d],)) for d in range(3)]
    start, step, taps, out = zip(*((a.start, a.step, a.taps, a.out) for a in axes), strict=True)
    if prod(len(a.phases) for a in axes) > MOST_MERGED:
        raise ValueError(f"more than {MOST_MERGED} phases in one kernel")
    own = replace(shape, start=start, step=step, taps=taps, out=out, spread=(1, 1, 1))
    parts = (_part(shape, own, phase) for phase in product(*(a.phases for a in axes)))
    return ConvPhase(shape=own, parts=tuple(parts))


def _axis(shape: ConvShape, d: int) -> _Axis:
    """All phases along one dimension. Which is the first of an o is free; of the ways to choose it the one with the
    fewest windows. Along the last it is 0, so that neighbours in memory begin at whole vectors."""
    spread, out = shape.spread[d], shape.out[d]
    shifts = range(spread) if d < 2 else (0,)
    return min((_windows(shape, d, range(-s, min(spread - s, out))) for s in shifts), key=lambda a: a.taps)


def _windows(shape: ConvShape, d: int, firsts: Sequence[int]) -> _Axis:
    spread, start, step = shape.spread[d], shape.start[d], shape.step[d]
    read = {f: [(t, f + start + t * step) for t in range(shape.taps[d])] for f in firsts}
    met = {f: [(t, at // spread) for t, at in own if at % spread == 0] for f, own in read.items()}
    places = {place for own in met.values() for _, place in own}
    if not places:
        raise ValueError("a kernel without a tap")
    low = min(places)
    apart = gcd(*(place - low for place in places)) or 1
    return _Axis(
        start=low, step=apart, taps=(max(places) - low) // apart + 1, out=-(-(shape.out[d] - min(firsts)) // spread),
        phases=tuple((f, tuple((t, (place - low) // apart) for t, place in own)) for f, own in met.items()),
    )  # fmt: skip


def _part(shape: ConvShape, own: ConvShape, phase: Sequence[tuple[int, tuple[tuple[int, int], ...]]]) -> ConvPart:
    (one, taps_one), (two, taps_two), (three, taps_three) = phase
    found = [zip(*triple, strict=True) for triple in product(taps_one, taps_two, taps_three)]
    return ConvPart(
        first=(one, two, three),
        taps=tuple((_number(shape, tuple(taps)), _number(own, tuple(windows))) for taps, windows in found),
    )


def _number(shape: ConvShape, tap: tuple[int, ...]) -> int:
    return (tap[0] * shape.taps[1] + tap[1]) * shape.taps[2] + tap[2]
