"""A region's dimensions as a product has them: several neighbouring ones are one of the product's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.access import in_parts
from tilewright.ir.program import Operand, Program, Statement

Found = tuple[Program, Match]


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


def refined(region: Found, coarse: tuple[int, ...]) -> Found:
    """The region with those of its dimensions in two through which dimensions of `coarse` cut, where that can be; one
    that reads positions stays as it is."""
    program, site = region
    if program.loads or any(isinstance(i, Statement) and i.op == "index" for i in program.body):
        return region
    for cut in (prod(coarse[:i]) for i in range(1, len(coarse))):
        d = next((d for d in range(len(program.domain)) if prod(program.domain[: d + 1]) > cut), None)
        whole = 0 if d is None else prod(program.domain[:d])
        if d is None or cut == whole or cut % whole or program.domain[d] % (cut // whole):
            continue
        shapes = (*(o.shape for o in program.operands), *(o.shape for o in program.outputs))
        binds = (*site.operands, *site.outputs)
        plain = all(len(b.order) == sum(s > 1 for s in shape) for b, shape in zip(binds, shapes, strict=True))
        if d in program.reduced or not plain:
            continue
        parts = (cut // whole, program.domain[d] // (cut // whole))
        program, site = _divided(program, site, d, parts)
    return program, site


def _divided(program: Program, site: Match, d: int, parts: tuple[int, int]) -> Found:
    """With dimension d in two."""

    def shape(of: tuple[int, ...]) -> tuple[int, ...]:
        return (*of[:d], *(parts if of[d] > 1 else (1, 1)), *of[d + 1 :])

    def order(of: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(new for i in of for new in ((d, d + 1) if i == d else (i + (i > d),)))

    def bind(own: Bind, of: tuple[int, ...], *, written: bool) -> Bind:
        if of[d] == 1:
            return own
        at = sum(size > 1 for size in of[:d])  # among the dimensions of more than 1
        at = at if written else own.order[at]
        split = (*own.split[:at], *parts, *own.split[at + 1 :])
        moved = tuple(new for i in own.order for new in ((at, at + 1) if i == at else (i + (i > at),)))
        return replace(own, split=split, order=moved)

    operands = tuple(replace(o, shape=shape(o.shape), order=order(o.order)) for o in program.operands)
    outputs = tuple(replace(o, shape=shape(o.shape)) for o in program.outputs)
    made = replace(program, domain=shape(program.domain), operands=operands, outputs=outputs,
                   reduced=tuple(r + (r > d) for r in program.reduced))  # fmt: skip
    return made, replace(
        site,
        operands=tuple(bind(b, o.shape, written=False) for b, o in zip(site.operands, program.operands, strict=True)),
        outputs=tuple(bind(b, o.shape, written=True) for b, o in zip(site.outputs, program.outputs, strict=True)),
    )


def collapsed(
    operand: Operand, bind: Bind, groups: tuple[tuple[int, ...], ...], domain: tuple[int, ...]
) -> Operand | None:
    """The operand of a region over `domain`, over the coarse one: broadcast over a part of a dimension (Operand.at)
    where it varies along some neighbours of those that make it up. None where these are no neighbours, or it would have
    to be copied for the parts to be one."""
    if operand.indexed or operand.at:
        return None
    in_memory = [d for d in operand.order or range(len(operand.shape)) if operand.shape[d] > 1]
    shape, each = [], []
    for group in groups:
        parts = [d for d in group if domain[d] > 1]
        inside = [d for d in parts if operand.shape[d] > 1]
        behind = parts[parts.index(inside[-1]) + 1 :] if inside else []
        if inside and parts[len(parts) - len(behind) - len(inside) : len(parts) - len(behind)] != inside:
            return None
        if any(in_memory.index(b) != in_memory.index(a) + 1 for a, b in pairwise(inside)):
            return None
        shape.append(prod(operand.shape[d] for d in group))
        each.append(prod(domain[d] for d in behind))
    home = {d: i for i, group in enumerate(groups) for d in group}
    runs = [home[d] for d in operand.order if operand.shape[d] > 1]
    order = tuple(dict.fromkeys(runs))
    if sum(1 for a, b in pairwise(runs) if a != b) != max(len(order) - 1, 0):
        return None
    order = (*(i for i in range(len(groups)) if i not in order), *order) if order else ()
    whole = all(size in (1, prod(domain[d] for d in group)) for size, group in zip(shape, groups, strict=True))
    return replace(operand, shape=tuple(shape), order=() if order == tuple(range(len(groups))) else order,
                   at=() if whole else in_parts(shape, each))  # fmt: skip
