"""A Program that makes attention's weights of scores, as the scores' own Program and what normalises them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.ir.program import REDUCTIONS, Output, Program, Reduction, Statement

from .region import Flow

_FLOATS = ("f64", "f32", "f16", "bf16")
_MOST_OF_LOGSUM = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """`program` is pointwise and gives the scores; the weights are their `softmax` along `reduced`, or they
    themselves. `sink`: the operand, which `program` does not read, that is one score more in the softmax's sums."""

    program: Program
    softmax: bool
    reduced: int | None
    sink: str = ""


def scores_of(weights: Program) -> Scores | None:
    """What a Program of one output computes; None where it is neither pointwise nor a softmax of what is."""
    made = {r: item for item in weights.body for r in _results(item)}
    (output,) = weights.outputs
    if any(not isinstance(item, Statement | Reduction) or item.op == "inside" for item in weights.body):
        return None
    if not weights.reduced:
        return Scores(program=weights, softmax=False, reduced=None)
    found = _normalised(weights, made, output.name)
    if found is None or len(weights.reduced) != 1:
        return None
    score, sink = found
    body = _needed(made, score)
    if body is None:
        return None
    dtypes = {o.name: o.dtype for o in weights.operands} | {i.result: i.dtype for i in body}
    read = {a for item in body for a in item.args if isinstance(a, str)} | {score}
    if any(o.name not in read and o.name != sink for o in weights.operands) or sink in read:
        return None
    given = Output(name=score, dtype=dtypes[score], shape=weights.domain)
    program = replace(weights, reduced=(), body=body, outputs=(given,))
    return Scores(program=program, softmax=True, reduced=weights.reduced[0], sink=sink)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSum:
    """The node that is `largest` + log(sum of exp(score - largest)) of each row, of the reduction `largest`; `nodes`:
    it, and what only leads to it."""

    name: str
    largest: str
    nodes: tuple[str, ...]


def logsum_of(flow: Flow, own: frozenset[str]) -> LogSum | None:
    """The logarithm of the sums that is made beside a softmax of these nodes, for a backward pass."""
    found: dict[str, None] = {}
    todo = [r for n in own if flow.nodes[n].op in REDUCTIONS for r in flow.readers[n] if r not in own]
    while todo:
        name = todo.pop()
        if name not in found and name not in own and flow.nodes[name].op in ("to", "log", "add"):
            found[name] = None
            todo += flow.readers[name] if len(found) < _MOST_OF_LOGSUM else ()
    ends = [name for name in found if flow.nodes[name].op == "add" and flow.nodes[name].dtype == "f32"]
    if len(ends) != 1 or flow.nodes[ends[0]].sources != flow.nodes[ends[0]].args:
        return None
    largest, logarithm = (_before_casts(flow, s) for s in flow.nodes[ends[0]].sources)
    total = _before_casts(flow, flow.nodes[logarithm].sources[0]) if flow.nodes[logarithm].op == "log" else ""
    kinds = [(flow.nodes[n].op, flow.nodes[n].item) for n in (largest, total) if n in own]
    if kinds not in ([("max", 0), ("sum", 0)], [("softmax_stats", 0), ("softmax_stats", 1)]):
        return None
    return LogSum(name=ends[0], largest=largest, nodes=tuple(found))


def _before_casts(flow: Flow, name: str) -> str:
    while flow.nodes[name].op == "to" and flow.nodes[name].dtype in _FLOATS:
        name = flow.nodes[name].sources[0]
    return name


def _results(item: object) -> tuple[str, ...]:
    return item.results if isinstance(item, Reduction) else (getattr(item, "result"),)  # noqa: B009


def _normalised(weights: Program, made: Mapping[str, object], name: str) -> tuple[str, str] | None:
    """The value of which this one is the softmax: exp(value - its largest) / the sum of these; and its sink, of which
    the same is in the sum, and in the largest ("": none)."""
    name = _converted(made, name)
    share = made.get(name)
    if not isinstance(share, Statement) or share.op != "div" or not all(isinstance(a, str) for a in share.args):
        return None
    above, below = (_converted(made, str(a)) for a in share.args)
    power = made.get(above)
    apart = made.get(_converted(made, str(power.args[0]))) if _is(power, "exp") else None  # type: ignore[attr-defined]
    if not isinstance(apart, Statement) or apart.op != "sub" or not all(isinstance(a, str) for a in apart.args):
        return None
    score, largest = (_converted(made, str(a)) for a in apart.args)
    sink, (highest, below) = _without_sink(weights, made, (largest, below))
    top, total = made.get(highest), made.get(below)
    if not isinstance(top, Reduction) or not isinstance(total, Reduction):
        return None
    if top.op == total.op == "softmax_stats":
        same = top is total and top.results == (largest, below) and _converted(made, top.arg) == score
        return (score, "") if same and not sink else None
    both = (top.op, total.op) == ("max", "sum") and _converted(made, top.arg) == score
    return (score, sink) if both and _converted(made, total.arg) == above else None


def _without_sink(
    weights: Program, made: Mapping[str, object], ends: tuple[str, str]
) -> tuple[str, tuple[str, str]]:  # fmt: skip
    """The sink of a softmax whose largest and sum these are, and both without it; "" and the same where it has none."""
    largest, total = (made.get(name) for name in ends)
    if not _is(largest, "maximum") or not _is(total, "add"):
        return "", ends
    operands = {o.name for o in weights.operands}
    sides = [[_converted(made, a) for a in i.args if isinstance(a, str)] for i in (largest, total)]  # type: ignore[attr-defined]
    sink = next((a for a in sides[0] if a in operands), "")
    for own in sides[1]:
        power = made.get(own)
        apart = made.get(_converted(made, str(power.args[0]))) if _is(power, "exp") else None  # type: ignore[attr-defined]
        if isinstance(apart, Statement) and apart.op == "sub" and len(sides[0]) == len(sides[1]) == 2:
            both = [_converted(made, a) for a in apart.args if isinstance(a, str)]
            if sink and both == [sink, ends[0]]:
                (highest,), (rest,) = ([a for a in side if a not in (sink, own)] for side in sides)
                return sink, (highest, rest)
    return "", ends


def _is(item: object, op: str) -> bool:
    return isinstance(item, Statement) and item.op == op


def _converted(made: Mapping[str, object], name: str) -> str:
    """The value of which this one is a conversion between floating types, or itself."""
    item = made.get(name)
    while isinstance(item, Statement) and item.op == "to" and item.dtype in _FLOATS and isinstance(item.args[0], str):
        source = made.get(item.args[0])
        if source is not None and getattr(source, "dtype") not in _FLOATS:  # noqa: B009
            break
        name, item = item.args[0], source
    return name


def _needed(made: Mapping[str, object], name: str) -> tuple[Statement, ...] | None:
    """The statements that make a value, in order; None where a reduction is among them."""
    wanted, todo = set[str](), [name]
    while todo:
        item = made.get(todo.pop())
        if isinstance(item, Reduction):
            return None
        if isinstance(item, Statement) and item.result not in wanted:
            wanted.add(item.result)
            todo += [a for a in item.args if isinstance(a, str)]
    return tuple(i for i in made.values() if isinstance(i, Statement) and i.result in wanted)


def renumbered(program: Program, order: tuple[int, ...], domain: tuple[int, ...]) -> Program:
    """A pointwise Program over other dimensions: `order[d]` is where its dimension d lies in `domain`, of which the
    others have size 1. Operands keep their elements; they are permuted as the domain is."""
    home = {place: d for d, place in enumerate(order)}

    def shape(of: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(of[home[d]] if d in home else 1 for d in range(len(domain)))

    body = tuple(
        replace(i, args=(order[int(i.args[0])],)) if isinstance(i, Statement) and i.op == "index" else i
        for i in program.body
    )
    operands = tuple(replace(o, shape=shape(o.shape), order=()) for o in program.operands)
    outputs = tuple(replace(o, shape=shape(o.shape)) for o in program.outputs)
    return replace(program, domain=domain, body=body, operands=operands, outputs=outputs)
