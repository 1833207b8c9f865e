"""An attention that was found in a graph, and its Program."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.access import Access, Position, Quotient
from tilewright.ir.graph import Node
from tilewright.ir.program import AttentionOp, Operand, Output, Program, Statement

from .axes import Axis
from .axis_parts import AxisPart, Dims, before_copies, split_parts, through_views
from .contract import memory
from .region import Flow
from .scores import renumbered

Found = tuple[Program, Match]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """`node` is the result of the second product, with `dims`. Each factor is a node with its dimensions. `scores` is
    over `axes`, the keys among them; `binds` are of its operands without the first, the product of query and key; with
    a `sink` that is the last of them. `nodes` are computed here, `spared` are those of them that no kernel need
    write."""

    node: Node
    dims: Dims
    query: tuple[Node, Dims]
    key: tuple[Node, Dims]
    value: tuple[Node, Dims]
    keys: Axis
    depth: Axis
    column: Axis
    scores: Program
    axes: tuple[Axis, ...]
    binds: tuple[Bind, ...]
    softmax: bool
    sink: bool
    empty_is_zero: bool
    spares: bool
    nodes: tuple[str, ...]
    spared: tuple[str, ...]
    logsum: tuple[Node, Dims] | None = None  # the logarithm of the softmax's sums, where it is wanted


def program_of(flow: Flow, whole: Attended) -> Found | None:
    """The Program of an attention and its place; None where its output does not lie with its columns last."""
    out, dims, more = _merged(flow, whole)
    cut = next((p for dim in dims for p in dim if not p.whole), None)
    if cut is not None:
        apart = divided(whole, cut)
        return None if apart is None else program_of(flow, apart)
    axes = [[p.axis for p in dim] for dim in dims]
    lies = [a for d in (out.order or range(len(out.shape))) for a in axes[d]]
    if not lies or lies[-1] is not whole.column or {*lies[:-1], whole.keys} != set(whole.axes):
        return None
    row = _row(flow, whole)
    shared = _shared(flow, whole) if row is None else None
    apart = None if shared is None else divided(whole, shared)
    if apart is not None:
        return program_of(flow, apart)
    places: dict[Axis, int] = {}
    sizes: list[int] = []
    for axis in lies:
        if row is None and axis is whole.column:  # a single query
            sizes.append(1)
        places[axis] = len(sizes)
        sizes.append(axis.size)
    domain = tuple(sizes)
    places |= {whole.keys: len(domain), whole.depth: len(domain) + 1}
    made = [
        operand_of(flow, f"x{i}", factor, (places, last))
        for i, (factor, last) in enumerate(
            ((whole.query, whole.depth), (whole.key, whole.depth), (whole.value, whole.column))
        )
    ]
    if any(m is None for m in made):
        return None
    factors = [m for m in made if m is not None]
    rank = len(domain)
    order = tuple(rank - 1 if a is whole.keys else places[a] for a in whole.axes)
    scores, binds = _permuted(renumbered(whole.scores, order, (*domain[:-1], whole.keys.size)), whole, order)
    names = tuple(f"x{3 + i}" for i in range(len(binds)))
    own = [
        Operand(name=name, dtype=o.dtype, shape=o.shape, indexed=True)
        for name, o in zip(names, scores.operands[1:], strict=True)
    ]
    item = AttentionOp(
        result="v0", query=factors[0].access, key=factors[1].access, value=factors[2].access, keys=whole.keys.size,
        depth=whole.depth.size, scores=scores, operands=names, dtype=whole.node.dtype, softmax=whole.softmax,
        empty_is_zero=whole.empty_is_zero, spares=whole.spares, sink=names[-1] if whole.sink else "",
        logsum="v1" if whole.logsum else "",
    )  # fmt: skip
    outputs = [Output(name="v0", dtype=whole.node.dtype, shape=domain)]
    written = [_written(out.name, lies, [a for dim in axes for a in dim])]
    if whole.logsum:
        node, of_rows = whole.logsum
        outputs.append(Output(name="v1", dtype="f32", shape=(*domain[:-1], 1)))
        written.append(_written(node.name, lies[:-1], [p.axis for dim in of_rows for p in dim]))
    program = Program(
        domain=domain, operands=(*(f.operand for f in factors), *own), body=(item,), outputs=tuple(outputs)
    )
    copies = tuple(n for f in factors for n in f.copies if _only_here(flow, n, whole, factors))
    spared = tuple(dict.fromkeys((*whole.spared, *more[:-1], *copies)))
    nodes = tuple(dict.fromkeys((*whole.nodes, *more)))
    binds = (*(f.bind for f in factors), *binds)
    return program, Match(nodes=nodes, operands=binds, outputs=tuple(written), spared=spared)


def _written(name: str, lies: list[Axis], axes: list[Axis]) -> Bind:
    """How a node of these axes is seen in a result over others in order."""
    return Bind(node=name, split=tuple(a.size for a in lies), order=tuple(lies.index(a) for a in axes))


def divided(whole: Attended, cut: AxisPart) -> Attended | None:
    """The same with the axis of a part as two, at the part's end or else its beginning; None where that can't be."""
    axis, inner = cut.axis, cut.each if cut.each > 1 else cut.size
    halves = Axis(axis.size // inner), Axis(inner)
    factors = (whole.query, whole.key, whole.value)
    rows = () if whole.logsum is None else (whole.logsum[1],)
    dims = [split_parts(d, axis, halves) for d in (whole.dims, *(own for _, own in factors), *rows)]
    at = whole.axes.index(axis) if axis in whole.axes else None
    if at is None or axis is whole.keys or any(d is None for d in dims):
        return None
    program = whole.scores
    if any(isinstance(i, Statement) and i.op == "index" and i.args[0] == at for i in program.body):
        return None

    def shape(of: tuple[int, ...]) -> tuple[int, ...]:
        return (*of[:at], *((h.size if of[at] > 1 else 1) for h in halves), *of[at + 1 :])

    binds = []
    for operand, bind in zip(program.operands[1:], whole.binds, strict=True):
        wide = [d for d, size in enumerate(operand.shape) if size > 1]
        if len(wide) != len(bind.order):
            return None
        if at in wide:
            i = bind.order[wide.index(at)]
            split = (*bind.split[:i], *(h.size for h in halves), *bind.split[i + 1 :])
            bind = replace(bind, split=split, order=tuple(
                new for d in bind.order for new in ((i, i + 1) if d == i else (d + (d > i),))
            ))  # fmt: skip
        binds.append(bind)
    body = tuple(
        replace(i, args=(int(i.args[0]) + (int(i.args[0]) > at),))
        if isinstance(i, Statement) and i.op == "index"
        else i
        for i in program.body
    )
    program = replace(
        program, domain=shape(program.domain), body=body,
        operands=tuple(replace(o, shape=shape(o.shape), order=()) for o in program.operands),
        outputs=tuple(replace(o, shape=shape(o.shape)) for o in program.outputs),
    )  # fmt: skip
    made = [d for d in dims if d is not None]
    query, key, value = ((node, own) for (node, _), own in zip(factors, made[1:4], strict=True))
    logsum = None if whole.logsum is None else (whole.logsum[0], made[4])
    return replace(
        whole, dims=made[0], query=query, key=key, value=value, scores=program, binds=tuple(binds), logsum=logsum,
        axes=(*whole.axes[:at], *halves, *whole.axes[at + 1 :]),
    )  # fmt: skip


def _merged(flow: Flow, whole: Attended) -> tuple[Node, Dims, tuple[str, ...]]:
    """The result, or the copy that alone reads it and brings its dimensions into another order; and the names of
    both."""
    node, readers = whole.node, flow.readers[whole.node.name]
    reader = flow.nodes[readers[0]] if len(readers) == 1 and node.name not in flow.kept else None
    if reader is not None and reader.op == "to" and reader.dtype == node.dtype:
        dims = through_views(flow, reader.sources[0], node.name, whole.dims)
        if dims is not None:
            return reader, dims, (node.name, reader.name)
    return node, whole.dims, (node.name,)


def _row(flow: Flow, whole: Attended) -> Axis | None:
    """The axis of the queries: the longest that neither keys nor values move along."""
    shared = {p.axis for p in _read_along(flow, whole)}
    own = [p.axis for dim in whole.query[1] for p in dim if p.axis not in shared and p.axis is not whole.depth]
    return max(own, key=lambda a: a.size, default=None)


def _shared(flow: Flow, whole: Attended) -> AxisPart | None:
    """Of a single query: the axis along which several neighbours read the same keys. These are then its queries."""
    return next((p for p in _read_along(flow, whole) if p.each > 1 and p.each * p.size == p.axis.size), None)


def _read_along(flow: Flow, whole: Attended) -> list[AxisPart]:
    """What keys and values move along, before heads are repeated."""
    return [p for factor in (whole.key, whole.value) for dim in before_copies(flow, *factor)[1] for p in dim]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttendedFactor:
    operand: Operand
    access: Access
    bind: Bind
    copies: tuple[str, ...]


def operand_of(
    flow: Flow, name: str, factor: tuple[Node, Dims], places: tuple[dict[Axis, int], Axis]
) -> AttendedFactor | None:  # fmt: skip
    """A factor as it is read before copies, with the axis that each row of it lies along last."""
    (at, last) = places
    node, dims, copies = before_copies(flow, *factor)
    parts = [(d, p) for d, dim in enumerate(dims) for p in dim]
    inner = [i for i, (_, p) in enumerate(parts) if p.axis is last]
    if len(inner) != 1 or not parts[inner[0]][1].whole or any(p.axis not in at for _, p in parts):
        return None
    if prod(p.size for _, p in parts) != prod(node.shape):
        return None
    order = (*(i for i in range(len(parts)) if i not in inner), *inner)
    positions: list[Position | Quotient] = []
    for _, p in (parts[i] for i in order):
        steps = ((at[p.axis], 1),)
        positions.append(Position(steps=steps) if p.whole else Quotient(steps=steps, each=p.each, wrap=p.size))
    split = tuple(p.size for _, p in parts)
    in_memory = [i for d in memory(flow, node) for i, (home, _) in enumerate(parts) if home == d]
    lies = tuple(order.index(i) for i in in_memory)
    operand = Operand(
        name=name, dtype=node.dtype, shape=tuple(split[i] for i in order), indexed=True,
        order=() if lies == tuple(range(len(lies))) else lies,
    )  # fmt: skip
    bind = Bind(node=node.name, split=split, order=order)
    return AttendedFactor(operand=operand, access=Access(operand=name, at=tuple(positions)), bind=bind, copies=copies)


def _permuted(scores: Program, whole: Attended, order: tuple[int, ...]) -> tuple[Program, tuple[Bind, ...]]:
    """The scores' Program, its operands named in order, and their binds in the order of its dimensions."""
    binds = []
    for old, bind in zip(whole.scores.operands[1:], whole.binds, strict=True):
        wide = [order[d] for d, size in enumerate(old.shape) if size > 1]  # where the bind's dimensions are now
        turn = sorted(range(len(wide)), key=wide.__getitem__)
        binds.append(replace(bind, order=tuple(bind.order[i] for i in turn)) if len(bind.order) == len(wide) else bind)
    return scores, tuple(binds)


def _only_here(flow: Flow, name: str, whole: Attended, factors: list[AttendedFactor]) -> bool:
    """Whether nothing but this attention, or another of its copies, reads a copy."""
    inside = {*whole.nodes, *(n for f in factors for n in f.copies)}
    return name not in flow.kept and set(flow.readers[name]) <= inside
