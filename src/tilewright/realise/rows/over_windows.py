"""Whether threads may slide over a Program's windows: whatever window reads an element, the same comes of it, and what
lies outside counts for nothing."""

from __future__ import annotations

from math import inf

from ...ir.program import Load, Operand, Plain, Program, Reduction, Statement
from ...ir.schedule import Schedule, schedule

_NEUTRAL = {"sum": 0, "max": -inf, "min": inf}


def over_windows(program: Program) -> bool:
    if not program.reduced or program.scan or program.ranked or program.sums or len(program.loads) != 1:
        return False
    cut = schedule(program)
    if len(cut.passes) != 1 or cut.element_outputs or len(cut.passes[0].reductions) != 1:
        return False
    (load,), elements, (reduction,) = program.loads, cut.passes[0].elements, cut.passes[0].reductions
    if load not in elements or load.args:
        return False
    source = next(o for o in program.operands if o.name == load.source)
    inside = all(p.surely_inside(size, program.domain) for p, size in zip(load.at, source.shape, strict=True))
    return _of_elements(program, load, cut) and (inside or _neutral_outside(load, elements, reduction))


def _of_elements(program: Program, load: Load, cut: Schedule) -> bool:
    """Whether what is reduced depends on nothing beside the load that differs between the windows of an element."""
    apart = set(program.reduced)
    for number, position in enumerate(load.at):
        dims = {d for d, _ in position.steps}
        if number >= len(load.at) - 2 or dims & set(program.reduced):
            apart |= dims
    known: dict[str, Plain | Operand] = {o.name: o for o in program.operands}
    known |= {item.result: item for item in (*cut.head, *cut.passes[0].elements)}
    todo, seen = [cut.passes[0].reductions[0].arg], set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        item = known[name]
        if isinstance(item, Operand):
            if any(item.shape[d] > 1 for d in apart):
                return False
        elif item.op == "index":
            if item.args[0] in apart:
                return False
        else:
            todo += [a for a in item.args if isinstance(a, str)]
    return True


def _neutral_outside(load: Load, elements: tuple[Plain, ...], reduction: Reduction) -> bool:
    made = {item.result: item for item in elements}
    item = made.get(reduction.arg)
    while isinstance(item, Statement) and item.op == "to" and item.dtype == "f32":
        item = made.get(str(item.args[0]))
    neutral = _NEUTRAL.get(reduction.op)
    if item is load:
        return load.fill is not None and load.fill == neutral
    if not isinstance(item, Statement) or item.op != "where":
        return False
    chosen = made.get(str(item.args[0]))
    return isinstance(chosen, Statement) and chosen.op == "inside" and item.args[2] == neutral
