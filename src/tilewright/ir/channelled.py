"""A convolution over groups of neighbouring channels of its output, and back: the domain of an epilogue that reduces
groups (group norm).

Of (N, Co, *o) the channels are (N, groups, Co / groups, *o)."""

from __future__ import annotations

from dataclasses import replace

from .pooled import moved
from .program import Contraction, Program

_CHANNELS = 1


def channelled(item: Contraction, groups: tuple[int, int]) -> Contraction:
    """A convolution without groups of its own over a row-major domain whose channels are in two."""

    def steps(d: int, step: int) -> tuple[tuple[int, int], ...]:
        if d == _CHANNELS:
            return ((d, step * groups[1]), (d + 1, step))
        return ((d + (d > _CHANNELS), step),)

    return moved(item, steps)


def unchannelled(program: Program) -> Program | None:
    """The convolution alone with its channels in one dimension; None where they are in one already."""
    item = program.product
    spatial = 0 if item is None else len(item.over) - 1
    if item is None or spatial < 1 or len(program.domain) != spatial + 3:
        return None
    first, second = program.domain[_CHANNELS : _CHANNELS + 2]

    def steps(d: int, step: int) -> tuple[tuple[int, int], ...]:
        if d == _CHANNELS:
            return ()
        return ((d - (d > _CHANNELS), step),)

    plain = moved(item, steps)
    if channelled(plain, (first, second)) != item:
        return None
    domain = (program.domain[0], first * second, *program.domain[3:])
    return replace(program, domain=domain, reduced=(), body=(plain,), outputs=())
