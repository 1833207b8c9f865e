"""Whether of each row only a stretch counts, whose ends are values of the row: then nothing else need be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod

from ...ir.program import Plain, Program, Reduction, Statement
from ...ir.schedule import Schedule, schedule

_NEUTRAL = {"sum": 0, "max": -inf, "min": inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedRow:
    """Of the values of a row `begin` and `end`: it goes from the one to before the other. `usual`: its length where
    stretches share out the dimension."""

    begin: str
    end: str
    usual: int


def stretch_of(program: Program) -> RaggedRow | None:
    """Of a program whose reductions, all in one sweep over one dimension that is not the innermost, take nothing
    outside of the stretch."""
    inner = len(program.domain) - 1
    if len(program.reduced) != 1 or program.scan or program.ranked or program.sums or inner in program.reduced:
        return None
    cut = schedule(program)
    if len(cut.passes) != 1 or cut.element_outputs:
        return None
    made = {item.result: item for item in cut.passes[0].elements}
    ends = {_ends(r, made, cut, program.reduced[0]) for r in cut.passes[0].reductions}
    found = next(iter(ends))
    if len(ends) != 1 or found is None:
        return None
    begin, end = found
    kinds = {o.name: o.dtype for o in program.operands} | {
        i.result: i.dtype for i in (*cut.head, *cut.passes[0].elements)
    }
    if {kinds.get(begin), kinds.get(end)} - {"i64", "i32"}:
        return None  # a fraction is no place
    shares = prod(program.aligned(begin))
    return RaggedRow(begin=begin, end=end, usual=max(program.inner_size // shares, 1)) if shares > 1 else None


def _ends(reduction: Reduction, made: Mapping[str, Plain], cut: Schedule, along: int) -> tuple[str, str] | None:
    """The values of a row outside of which this reduction takes what is neutral to it."""
    item = made.get(reduction.arg)
    while isinstance(item, Statement) and item.op == "to" and item.dtype == "f32":
        item = made.get(str(item.args[0]))
    if not isinstance(item, Statement) or item.op != "where" or item.args[2] != _NEUTRAL.get(reduction.op):
        return None
    both = made.get(str(item.args[0]))
    if not isinstance(both, Statement) or both.op != "logical_and":
        return None
    tests = [made.get(str(a)) for a in both.args]
    ends = [_end(test, op, made, along) for test, op in zip(tests, ("ge", "lt"), strict=True)]
    begin, end = ends
    return (begin, end) if begin in cut.row_names and end in cut.row_names else None


def _end(test: Plain | None, op: str, made: Mapping[str, Plain], along: int) -> str:
    """What the position along the dimension is compared with."""
    if not isinstance(test, Statement) or test.op != op or not isinstance(test.args[1], str):
        return ""
    place = made.get(str(test.args[0]))
    is_place = isinstance(place, Statement) and place.op == "index" and place.args[0] == along
    return test.args[1] if is_place else ""
