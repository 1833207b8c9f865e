"""Axes: which index positions of different values are the same one, through reshapes, permutations and broadcasts.

Every dimension of every value is a list of axes. Where two dimensions must agree their axes are unified; where a
reshape divides a dimension, its axis is split. The leaves that are left are the dimensions of a common domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Dims = list[list["Axis"]]  # one list of axes per dimension, outermost first; a dimension of size 1 has none


class Misaligned(Exception):
    """Two index spaces can't be made of common axes."""


class Axis:
    """A range of index positions; once unified it stands for another axis, once split for its parts."""

    __slots__ = ("parts", "same", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.same: Axis | None = None
        self.parts: tuple[Axis, Axis] | None = None

    def leaves(self) -> list[Axis]:
        axis = self
        while axis.same is not None:
            axis = axis.same
        return [axis] if axis.parts is None else [*axis.parts[0].leaves(), *axis.parts[1].leaves()]


def fresh(shape: Iterable[int]) -> Dims:
    """New axes for a shape."""
    return [[Axis(size)] if size != 1 else [] for size in shape]


def leaves(axes: Iterable[Axis]) -> list[Axis]:
    return [leaf for axis in axes for leaf in axis.leaves()]


def flat(dims: Sequence[Sequence[Axis]]) -> list[Axis]:
    return leaves(axis for dim in dims for axis in dim)


def unify(left: Sequence[Axis], right: Sequence[Axis]) -> None:
    """Make two runs of axes with the same number of positions the same; raises Misaligned where sizes don't divide."""
    first, second = leaves(left)[::-1], leaves(right)[::-1]
    while first and second:
        # A leaf may have been unified or split a moment ago.
        one, other = first.pop().leaves(), second.pop().leaves()
        first += one[:0:-1]
        second += other[:0:-1]
        _unify_leaves(one[0], other[0], first, second)
    if first or second:
        raise Misaligned


def _unify_leaves(one: Axis, other: Axis, first: list[Axis], second: list[Axis]) -> None:
    if one is other:
        return
    if one.size == other.size:
        other.same = one
        return
    if one.size < other.size:
        one, other, first, second = other, one, second, first
    if one.size % other.size:
        raise Misaligned
    one.parts = (Axis(other.size), Axis(one.size // other.size))
    first += one.parts[::-1]
    second.append(other)


def broadcast(dims: Dims, shape: Sequence[int], into: Dims, into_shape: Sequence[int]) -> None:
    """Unify a value's dimensions with those of the result into which it broadcasts, aligned on the right."""
    offset = len(into_shape) - len(shape)
    for d, size in enumerate(shape):
        if size == into_shape[d + offset] and size != 1:
            unify(dims[d], into[d + offset])
