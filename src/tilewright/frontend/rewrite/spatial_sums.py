"""Sums over whole sides of a convolution: of its input, for each tap, the sum of what the tap meets there.

Where a tap meets neighbours, these are all elements but a few at either end. So all are read once, and the ends once
for each tap; nothing is subtracted. Sums are kept in 32 bits at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.ir.access import Position
from tilewright.ir.graph import Node

from ..lowering.form import Stuck, groups
from ..lowering.lower import Expr
from .convolution_form import ConvolutionForm, Value
from .sides import Side


def summed_over(form: ConvolutionForm, node: Node) -> ConvolutionForm:
    """The sum over dimensions of the value, among them whole sides; what else is summed is so at last. Raises Stuck
    where it takes a part of a side, or none."""
    gone, left = _taken(form, node)
    if not gone or any(form.varies(d) for d in gone):
        raise Stuck
    x, sides = form.x, list(form.sides)
    for d in sorted(gone, reverse=True):
        x = _summed_side(x, d, form.sides[d - 2], transposed=form.transposed)
        sides[d - 2] = replace(sides[d - 2], size=x.shape[d], summed=True)
    shifts = tuple(_summed_shift(s, form.base, gone) for s in form.shifts)
    rest = tuple(d for d in node.dims if left[d] > 1)
    said = "a product of sums of its input" if all(s.summed for s in sides) else "a convolution of sums of its input"
    return replace(
        form, x=x, sides=tuple(sides), shifts=shifts, rest=rest, shape=left if rest else node.shape,
        steps=(*form.steps, said),
    )  # fmt: skip


def _taken(form: ConvolutionForm, node: Node) -> tuple[list[int], tuple[int, ...]]:
    """The sides, as dimensions of `base`, that are summed, and the value's shape when they are."""
    gone: list[int] = []
    left = list(form.shape)
    for mine, of_base in groups(form.shape, form.base):
        wide = [d for d in mine if form.shape[d] > 1]
        taken = [d for d in wide if d in node.dims]
        space = [d for d in of_base if d >= 2 and form.base[d] > 1]
        if not (taken and space):
            continue
        if len(taken) != len(wide):
            raise Stuck
        gone += space
        own = prod(form.base[d] for d in of_base if d < 2)
        for d in mine:
            left[d] = own if d == mine[0] else 1
    return gone, tuple(left)


def _summed_shift(shift: Value, base: Sequence[int], dims: Sequence[int]) -> Value:
    if not isinstance(shift, Expr):
        return shift * float(prod(base[d] for d in dims))
    varying = [d for d in dims if shift.shape[d] > 1]
    whole = shift.wide().reduce("sum", varying, keepdim=True) if varying else shift.wide()
    times = prod(base[d] for d in dims if shift.shape[d] == 1)
    return whole * float(times) if times > 1 else whole


def _summed_side(x: Expr, dim: int, side: Side, *, transposed: bool) -> Expr:
    """`x` with as many elements along `dim` as there are taps."""
    x = x.wide()
    if side.stride > 1 and not transposed:
        shape = (*x.shape[:dim], side.taps, side.out, *x.shape[dim + 1 :])
        at = [Position(steps=((d if d < dim else d + 1, 1),)) for d in range(len(x.shape))]
        at[dim] = Position(start=-side.padding, steps=((dim, side.dilation), (dim + 1, side.stride)))
        return x.builder.load(x, shape, at, 0.0).reduce("sum", (dim + 1,))
    met = [side.met(tap, transposed=transposed) for tap in range(side.taps)]
    first, last = max(a for a, _ in met), min(b for _, b in met)
    if first >= last and side.taps == 1:
        raise Stuck
    if first >= last:  # no element is met by all taps
        return _end(x, dim, side, (0, side.size), transposed=transposed)
    total = x.slice(dim, first, last - first).reduce("sum", (dim,), keepdim=True)
    for start, stop in ((min(a for a, _ in met), first), (last, max(b for _, b in met))):
        if stop > start:
            total = total + _end(x, dim, side, (start, stop), transposed=transposed)
    return total.expand((*x.shape[:dim], side.taps, *x.shape[dim + 1 :]))


def _end(x: Expr, dim: int, side: Side, part: tuple[int, int], *, transposed: bool) -> Expr:
    """For each tap the sum of those elements of a part of `x` that it meets."""
    (start, stop), builder, rank = part, x.builder, len(x.shape) + 1
    values = x.slice(dim, start, stop - start)
    values = values.reshape((*values.shape[:dim], 1, *values.shape[dim:]))
    element = builder.place(stop - start, dim + 1, rank) + start if stop - start > 1 else start
    tap = builder.place(side.taps, dim, rank) * side.dilation - side.padding
    place = element * side.stride + tap if transposed else element - tap
    inside = (place >= 0).do("logical_and", place < side.out)
    return inside.where(values, 0.0).reduce("sum", (dim + 1,))
