"""Columns of a product that are reduced whole: rows of its transpose, which is as good a product. Its epilogue is the
same, with the last two dimensions in each other's place."""

from __future__ import annotations

from dataclasses import replace

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.program import Operand, Program, Statement

from .coarse import parted
from .contract import Multiplication
from .unrolled import transposed

Found = tuple[Program, Match]


def across(whole: Multiplication, region: Found) -> Found | None:
    """Of a region that reduces this product's columns whole, what reduces its transpose's rows; None of others."""
    program, site = region
    groups = parted(program.domain, whole.domain)
    if not program.reduced or whole.ends is not None or groups is None or program.reduced != groups[-2]:
        return None
    order = tuple(d for group in (*groups[:-2], groups[-1], groups[-2]) for d in group)
    turn = {old: new for new, old in enumerate(order)}
    made = [_seen(o, b, whole.node.name, order) for o, b in zip(program.operands, site.operands, strict=True)]
    if any(m is None for m in made):
        return None
    body = tuple(
        replace(i, args=(turn[int(i.args[0])],)) if isinstance(i, Statement) and i.op == "index" else i
        for i in program.body
    )
    found = replace(
        program, domain=tuple(program.domain[d] for d in order), body=body,
        reduced=tuple(sorted(turn[d] for d in program.reduced)), operands=tuple(m[0] for m in made if m),
        outputs=tuple(replace(o, shape=tuple(o.shape[d] for d in order)) for o in program.outputs),
    )  # fmt: skip
    return found, replace(site, operands=tuple(m[1] for m in made if m))


def _seen(operand: Operand, bind: Bind, node: str, order: tuple[int, ...]) -> tuple[Operand, Bind] | None:
    """An operand with its dimensions in this order; the product itself lies as the transpose has it."""
    wide = [d for d, size in enumerate(operand.shape) if size > 1]
    if operand.indexed or len(wide) != len(bind.order):
        return None
    if bind.node == node:
        in_order = bind.order == tuple(range(len(bind.order))) and not operand.order
        whole = replace(operand, shape=tuple(operand.shape[d] for d in order))
        return (whole, bind) if in_order else None
    source = dict(zip(wide, bind.order, strict=True))
    turn = {old: new for new, old in enumerate(order)}
    return transposed(operand, order, turn), replace(bind, order=tuple(source[d] for d in order if d in source))
