"""A convolution over windows of its output that do not overlap, and back: the domain of an epilogue that pools.

Of (N, Co, *o) the first p * window places along each spatial dimension are (N, Co, *p, *window), so that what is pooled
are the last dimensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .access import Access, Position, Quotient
from .program import Contraction, Program

Place = Position | Quotient
_CHANNELS = 2  # the first dimension behind them


def windowed(item: Contraction, rank: int, window: tuple[int, ...]) -> Contraction:
    """A convolution without groups over a domain of `rank` dimensions, row-major, over windows of what it gives."""

    def steps(d: int, step: int) -> tuple[tuple[int, int], ...]:
        if d >= rank:
            return ((d + len(window), step),)
        return ((d, step),) if d < _CHANNELS else ((d, step * window[d - _CHANNELS]), (d + len(window), step))

    return moved(item, steps)


def unwindowed(program: Program) -> tuple[Program, tuple[int, ...]] | None:
    """The convolution alone, over all places that its windows have, and their size; None where it is over none."""
    item = program.product
    spatial = 0 if item is None else len(item.over) - 1
    rank = _CHANNELS + spatial
    if item is None or spatial < 1 or len(program.domain) != rank + spatial:
        return None
    window = program.domain[rank:]

    def steps(d: int, step: int) -> tuple[tuple[int, int], ...]:
        if _CHANNELS <= d < rank:
            return ()
        return ((d if d < _CHANNELS else d - spatial, step),)

    plain = moved(item, steps)
    if windowed(plain, rank, window) != item:
        return None
    places = tuple(n * w for n, w in zip(program.domain[_CHANNELS:rank], window, strict=True))
    whole = replace(program, domain=(*program.domain[:_CHANNELS], *places), reduced=(), body=(plain,), outputs=())
    return whole, window


def moved(item: Contraction, steps: Callable[[int, int], tuple[tuple[int, int], ...]]) -> Contraction:
    """With each step of its accesses as these are."""

    def place(p: Place) -> Place:
        return replace(p, steps=tuple(new for d, step in p.steps for new in steps(d, step)))

    def access(a: Access) -> Access:
        return replace(a, at=tuple(place(p) for p in a.at))

    return replace(item, left=access(item.left), right=access(item.right))
