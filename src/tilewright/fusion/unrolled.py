"""Windows that share nothing: a region that reads each element of a value once, in its order in memory, as one that
reads it at its own position. So a pooling of columns is a reduction of groups of them."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.program import Load, Operand, Program, Statement

from .region import Flow

Found = tuple[Program, Match]


def unrolled(flow: Flow, region: Found, node: str) -> Found:
    """The region without its Load of this value, where that can be; its dimensions are put in the value's order."""
    program, site = region
    binds = dict(zip((o.name for o in program.operands), site.operands, strict=True))
    named = {o.name: o for o in program.operands}
    loads = [load for load in program.loads if _reshaped(flow, binds[load.source].node, node)]
    placed = any(isinstance(item, Statement) and item.op in ("index", "inside") for item in program.body)
    if placed or len(program.loads) != 1 or len(loads) != 1 or any(p.value for p in loads[0].at):
        return region
    (load,) = loads
    source = named[load.source]
    order = _order(load, source, program.domain)
    bind = binds[source.name]
    whole = bind.order == tuple(range(len(bind.order))) and not source.order
    if order is None or not whole or prod(source.shape) != prod(program.domain):
        return region
    turn = {old: new for new, old in enumerate(order)}
    operands = tuple(
        Operand(name=load.result, dtype=o.dtype, shape=tuple(program.domain[d] for d in order)) if o is source
        else transposed(o, order, turn) for o in program.operands
    )  # fmt: skip
    outputs = tuple(replace(o, shape=tuple(o.shape[d] for d in order)) for o in program.outputs)
    if any([d for d in order if o.shape[d] > 1] != [d for d, size in enumerate(o.shape) if size > 1]
           for o in program.outputs):  # fmt: skip
        return region  # what is written would lie otherwise
    made = replace(
        program, domain=tuple(program.domain[d] for d in order),
        reduced=tuple(sorted(turn[d] for d in program.reduced)),
        operands=operands, body=tuple(i for i in program.body if i is not load), outputs=outputs,
    )  # fmt: skip
    flat = Bind(node=node, split=made.domain, order=tuple(range(len(order))))
    pairs = zip(program.operands, site.operands, strict=True)
    return made, replace(site, operands=tuple(flat if o is source else b for o, b in pairs))


def _reshaped(flow: Flow, name: str, node: str) -> bool:
    """Whether a value is this one in another shape."""
    while name != node and flow.nodes[name].op == "reshape":
        name = flow.nodes[name].sources[0]
    return name == node


def _order(load: Load, source: Operand, domain: tuple[int, ...]) -> tuple[int, ...] | None:
    """The dimensions of the domain from the outermost to the innermost in memory, if every element is read once."""
    steps = dict.fromkeys(range(len(domain)), 0)
    for k, position in enumerate(load.at):
        inner = prod(source.shape[k + 1 :])
        if position.start or not position.surely_inside(source.shape[k], domain):
            return None
        for d, step in position.steps:
            steps[d] += step * inner
    wide = sorted((d for d, size in enumerate(domain) if size > 1), key=lambda d: -steps[d])
    order = (*(d for d, size in enumerate(domain) if size == 1), *wide)
    dense = all(steps[d] == prod(domain[e] for e in wide[i + 1 :]) for i, d in enumerate(wide))
    return order if dense else None


def transposed(operand: Operand, order: tuple[int, ...], turn: dict[int, int]) -> Operand:
    """The operand with its dimensions in this order; `turn` is where each goes."""
    if operand.indexed:
        return operand
    shape = tuple(operand.shape[d] for d in order)
    lies = operand.order or tuple(range(len(order)))
    found = tuple(turn[d] for d in lies)
    return replace(operand, shape=shape, order=() if found == tuple(range(len(order))) else found)
