"""A region's dimensions as a product has them: several neighbouring ones are one of the product's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

from tilewright.facts.pattern import Bind
from tilewright.facts.program import Operand


def parted(fine: tuple[int, ...], coarse: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """For each dimension of `coarse` those of `fine` that make it up, in order; None where they cut across."""
    groups, at = [], 0
    for size in coarse:
        start = at
        while at < len(fine) and prod(fine[start:at]) < size:
            at += 1
        if prod(fine[start:at]) != size:
            return None
        groups.append(tuple(range(start, at)))
    return tuple(groups) if at == len(fine) else None


def collapsed(operand: Operand, bind: Bind, groups: tuple[tuple[int, ...], ...]) -> Operand | None:
    """The operand over the coarse domain; None where it varies along a part of a dimension, or would have to be copied
    for the parts to be one."""
    if operand.indexed:
        return None
    wide = [d for d, size in enumerate(operand.shape) if size > 1]
    source = dict(zip(wide, bind.order, strict=True))  # dimension -> its place in the value that is read
    shape = []
    for group in groups:
        inside = [d for d in group if operand.shape[d] > 1]
        if inside and len(inside) != len(group):
            return None
        if any(source[b] != source[a] + 1 for a, b in pairwise(inside)):
            return None
        shape.append(prod(operand.shape[d] for d in group))
    home = {d: i for i, group in enumerate(groups) for d in group}
    order = tuple(dict.fromkeys(home[d] for d in operand.order))
    runs = [home[d] for d in operand.order]
    if sum(1 for a, b in pairwise(runs) if a != b) != max(len(order) - 1, 0):
        return None
    order = (*(i for i in range(len(groups)) if i not in order), *order) if order else ()
    return replace(operand, shape=tuple(shape), order=() if order == tuple(range(len(groups))) else order)
