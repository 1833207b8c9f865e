"""The backward of attention as one Program: where a graph computes the scores again, and from them and the upstream the
gradients of query, key, value and of what the scores are made of.

Found by its five products: score and weight gradient enter a pointwise map, whose results are the weights, the gradient
of the score, and perhaps gradients of the map's operands, summed or whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.contraction import Contracted, contracted
from tilewright.ir.graph import Node
from tilewright.ir.program import POINTWISE, AttentionBackwardOp, Operand, Output, Program, Statement

from .attended import operand_of
from .attention import entering
from .axes import Axis
from .axis_parts import Dims, whole_axes
from .program import write
from .region import Flow, GrownRegion, lay_out
from .scores import renumbered

Found = tuple[Program, Match]


def attention_gradients(flow: Flow, unsupported: Callable[[Program], str | None]) -> tuple[list[Found], dict[str, str]]:
    """The gradients of attentions in a graph, and why others are left, by the names of their nodes."""
    found: list[Found] = []
    left: dict[str, str] = {}
    for score, gradient in _pairs(flow):
        made = _made(flow, score, gradient)
        why = None if made is None else unsupported(made[0])
        if why is not None:
            left[score] = left[gradient] = why
        elif made is not None:
            found.append(made)
    return found, left


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """A product and what it contracts."""

    node: Node
    found: Contracted


def _product(flow: Flow, name: str) -> _Product | None:
    node = flow.nodes[name]
    call = flow.calls.get(node.origin) if node.op == "call" else None
    if call is None or call.results != (name,) or call.ordered:
        return None
    found = contracted(call, flow.nodes, spread=True)
    alike = found is not None and {found.left.dtype, found.right.dtype} == {node.dtype}
    if found is None or found.added or found.alpha != 1.0 or not alike:
        return None
    return _Product(node=node, found=found)


def _after(flow: Flow, name: str) -> frozenset[str]:
    """The pointwise nodes that depend on a value, through no other kind of node."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        for reader in flow.readers[todo.pop()]:
            if reader not in seen and flow.fusable(reader) and flow.nodes[reader].op in POINTWISE:
                seen.add(reader)
                todo.append(reader)
    return frozenset(seen)


def _pairs(flow: Flow) -> Iterator[tuple[str, str]]:
    """Two products of one size that a map takes together, one of which alone leads to the weights."""
    products = [n for n in flow.nodes if n in flow.live and n not in flow.kept and _product(flow, n) is not None]
    after = {n: _after(flow, n) for n in products}
    for score in products:
        for gradient in products:
            inner, outer = after[gradient], after[score]
            alike = flow.nodes[score].shape == flow.nodes[gradient].shape
            if score != gradient and alike and inner & outer and outer - inner:
                yield score, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class _Map:
    """The map as a region, and what reads it: products by the root that they read, sums, and what is kept whole."""

    region: GrownRegion
    readers: dict[str, list[_Product]]
    summed: tuple[str, ...]


def _map(flow: Flow, score: str, gradient: str) -> _Map | None:
    own = _after(flow, score) | _after(flow, gradient)
    readers: dict[str, list[_Product]] = {}
    outputs: dict[str, None] = {}
    sums: dict[str, None] = {}
    for name in sorted(own, key=flow.position.__getitem__):
        if name in flow.kept:
            outputs[name] = None
        for reader in flow.readers[name]:
            if reader in own:
                continue
            product = _product(flow, reader)
            if product is not None:
                readers.setdefault(name, []).append(product)
            elif flow.nodes[reader].op == "sum":
                sums[reader] = outputs[name] = None
            else:
                return None
    outer = {r for name in (score, gradient) for r in flow.readers[name]}
    if not outer <= own or len(readers) != 2:
        return None
    weights = next((n for n in readers if n not in _after(flow, gradient)), None)
    scored = next((n for n in readers if n != weights), None)
    if weights is None or scored is None or len(readers[weights]) != 1 or len(readers[scored]) != 2:
        return None
    region = lay_out(flow, own | entering(flow, own), list(dict.fromkeys((weights, scored, *outputs))))
    if region is None:
        return None
    order = [name for name in (weights, scored, *outputs) if name in region.outputs]
    named = {name: readers[name] for name in (weights, scored)}
    return _Map(region=replace(region, outputs=tuple(dict.fromkeys(order))), readers=named, summed=tuple(sums))


def _leaves(dims: Sequence[Sequence[Axis]]) -> list[list[Axis]]:
    return [[leaf for axis in dim for leaf in axis.leaves()] for dim in dims]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """Query and key of the scores, upstream and value of the weights' gradient, with their dimensions."""

    query: tuple[Node, Dims]
    key: tuple[Node, Dims]
    value: tuple[Node, Dims]
    upstream: tuple[Node, Dims]
    rows: Axis
    keys: Axis
    depth: Axis
    column: Axis


def _made(flow: Flow, score: str, gradient: str) -> Found | None:
    whole = _map(flow, score, gradient)
    if whole is None:
        return None
    region = whole.region
    read = {r.root: whole_axes(_leaves(r.dims)) for r in region.reads.values()}
    products = [_product(flow, name) for name in (score, gradient)]
    if any(name not in read for name in (score, gradient)) or any(
        len(p.axis.leaves()) != 1 for n in (score, gradient) for d in read[n] for p in d
    ):
        return None
    sides = _sides(whole, [p for p in products if p], [read[score], read[gradient]])
    return None if sides is None else _assembled(flow, whole, sides, (score, gradient))


def _split(product: _Product, dims: Dims) -> list[tuple[Node, Dims, set[Axis]]] | None:
    """Each factor with its dimensions, the contracted axis with size and place last, and the axes that it alone has."""
    letters = product.found.letters
    of = dict(zip(letters.result, dims, strict=True))
    summed = [c for c in letters.left if c in letters.right and c not in of]
    if len(summed) != 1 or any(c not in of and c not in summed for c in letters.left + letters.right):
        return None
    left, right = product.found.left, product.found.right
    depth = Axis(left.shape[letters.left.index(summed[0])])
    of[summed[0]] = whole_axes([[depth]])[0]
    made = []
    for node, word in ((left, letters.left), (right, letters.right)):
        own = tuple(() if n == 1 else of[c] for n, c in zip(node.shape, word, strict=True))
        made.append((node, own, {p.axis for dim in own for p in dim} - {depth}))
    (a, da, one), (b, db, other) = made
    return [(a, da, one - other), (b, db, other - one)] if depth.size > 1 else None


def _sides(whole: _Map, products: list[_Product], dims: list[Dims]) -> _Sides | None:
    split = [_split(p, d) for p, d in zip(products, dims, strict=True)]
    first, second = split[0], split[1]
    if first is None or second is None:
        return None
    weights = next(iter(whole.readers))
    (value_gradient,) = whole.readers[weights]
    given = {value_gradient.found.left.name, value_gradient.found.right.name}
    upstream = [i for i, (node, _, _) in enumerate(second) if node.name in given]
    if len(upstream) != 1:
        return None
    do, value = second[upstream[0]], second[1 - upstream[0]]
    if not do[2] or len(value[2]) != 1:
        return None
    # Of what the value does not move along the longest is the queries; along the others it is shared.
    (keys,), rows = value[2], max(do[2], key=lambda a: a.size)
    query = [f for f in first if f[2] == do[2]]
    key = [f for f in first if f[2] == {keys}]
    if len(query) != 1 or len(key) != 1:
        return None
    depth = {p.axis for dim in query[0][1] for p in dim} & {p.axis for dim in key[0][1] for p in dim}
    column = {p.axis for dim in do[1] for p in dim} & {p.axis for dim in value[1] for p in dim}
    region = set(whole.region.domain)
    depths, columns = depth - region, column - region
    if len(depths) != 1 or len(columns) != 1:
        return None
    return _Sides(query=query[0][:2], key=key[0][:2], value=value[:2], upstream=do[:2], rows=rows, keys=keys,
                  depth=depths.pop(), column=columns.pop())  # fmt: skip


def _assembled(flow: Flow, whole: _Map, sides: _Sides, products: tuple[str, str]) -> Found | None:
    region = whole.region
    batch = [a for a in region.domain if a not in (sides.rows, sides.keys)]
    axes = (*batch, sides.rows, sides.column)
    places = {axis: i for i, axis in enumerate((*axes, sides.keys, sides.depth))}
    factors = [
        operand_of(flow, f"x{i}", factor, (places, last))
        for i, (factor, last) in enumerate((
            (sides.query, sides.depth), (sides.key, sides.depth), (sides.value, sides.column),
            (sides.upstream, sides.column),
        ))
    ]  # fmt: skip
    known = [f for f in factors if f is not None]
    gradients = _gradients(whole, sides, batch)
    if len(known) < len(factors) or gradients is None:
        return None
    program, site = write(flow, region)
    place = {a: i for i, a in enumerate((*batch, sides.rows, sides.keys))}
    order = tuple(place[a] for a in region.domain)
    domain = tuple(a.size for a in (*batch, sides.rows, sides.keys))
    first = [next((i for i, b in enumerate(site.operands) if b.node == p), -1) for p in products]
    others = [i for i in range(len(site.operands)) if i not in first]
    if -1 in first or any(not isinstance(i, Statement) for i in program.body):
        return None
    scores = renumbered(replace(program, operands=tuple(program.operands[i] for i in (*first, *others))), order, domain)
    names = tuple(f"x{4 + i}" for i in range(len(others)))
    own = [
        Operand(name=name, dtype=o.dtype, shape=o.shape, indexed=True)
        for name, o in zip(names, scores.operands[2:], strict=True)
    ]
    binds = [_turned(site.operands[i], program.operands[i].shape, order) for i in others]
    summed = [_summed(flow, whole, name, place) for name in _further(flow, whole)]
    kept = {name: i for i, name in enumerate(region.outputs)}
    outs = [scores.outputs[kept[n]] for n in (*whole.readers, *(source for source, _, _ in summed))]
    results = tuple(f"v{i}" for i in range(3 + len(summed)))
    item = AttentionBackwardOp(
        results=results, query=known[0].access, key=known[1].access, value=known[2].access, upstream=known[3].access,
        keys=sides.keys.size, depth=sides.depth.size, map=replace(scores, outputs=tuple(outs)), operands=names,
        dtype=sides.query[0].dtype, spares=flow.graph.sparing,
    )  # fmt: skip
    made = [(*g, sides.query[0].dtype) for g in gradients] + [
        (shape, bind, out.dtype) for (_, shape, bind), out in zip(summed, outs[2:], strict=True)
    ]
    whole_program = Program(
        domain=tuple(a.size for a in axes), operands=(*(f.operand for f in known), *own), body=(item,),
        outputs=tuple(Output(name=n, dtype=d, shape=s) for n, (s, _, d) in zip(results, made, strict=True)),
    )  # fmt: skip
    inner = (*products, *site.nodes)
    nodes = tuple(dict.fromkeys((*inner, *(b.node for _, b, _ in made))))
    ours = [n for n in inner if n not in flow.kept]
    copies = [n for f in known for n in f.copies if n not in flow.kept and set(flow.readers[n]) <= set(nodes)]
    match = Match(
        nodes=nodes, operands=(*(f.bind for f in known), *binds), outputs=tuple(b for _, b, _ in made),
        spared=tuple(dict.fromkeys((*ours, *copies))),
    )  # fmt: skip
    return whole_program, match


def _turned(bind: Bind, shape: tuple[int, ...], order: tuple[int, ...]) -> Bind:
    """The bind of an operand of the map in the order of the map's dimensions."""
    wide = [order[d] for d, size in enumerate(shape) if size > 1]
    turn = sorted(range(len(wide)), key=wide.__getitem__)
    return replace(bind, order=tuple(bind.order[i] for i in turn)) if len(bind.order) == len(wide) else bind


def _gradients(whole: _Map, sides: _Sides, batch: list[Axis]) -> list[tuple[tuple[int, ...], Bind]] | None:
    """Shape and place of the gradients of query, key and value."""
    weights, scored = whole.readers
    of_value = whole.readers[weights][0]
    of_query = [p for p in whole.readers[scored] if _other(p, sides.key[0])]
    of_key = [p for p in whole.readers[scored] if _other(p, sides.query[0]) and p not in of_query]
    if len(of_query) != 1 or len(of_key) != 1:
        return None
    found = []
    for product, (node, dims), across in (
        (of_query[0], sides.query, (sides.rows, sides.depth)), (of_key[0], sides.key, (sides.keys, sides.depth)),
        (of_value, sides.value, (sides.keys, sides.column)),
    ):  # fmt: skip
        axes = [p.axis for dim in dims for p in dim]
        if product.node.shape != node.shape or any(not p.whole for dim in dims for p in dim):
            return None
        shared = [a for a in batch if a not in axes]
        if not {*across} <= {*axes} or (shared and product is of_query[0]):
            return None
        lies = [a for a in (*batch, *across) if a in axes]
        bind = Bind(node=product.node.name, split=tuple(a.size for a in lies), order=tuple(map(lies.index, axes)))
        found.append((tuple(1 if a in shared else a.size for a in (*batch, *across)), bind))
    return found if found[1][0][:-1] == found[2][0][:-1] else None


def _other(product: _Product, factor: Node) -> bool:
    return factor.name in (product.found.left.name, product.found.right.name)


def _further(flow: Flow, whole: _Map) -> list[str]:
    """The nodes that hold gradients of the map's operands: sums, and values that are kept whole."""
    return [*whole.summed, *(n for n in whole.region.outputs if n in flow.kept)]


def _summed(flow: Flow, whole: _Map, name: str, place: dict[Axis, int]) -> tuple[str, tuple[int, ...], Bind]:
    """Of such a node: what it sums, its shape over batch, queries and keys, and how it is seen there."""
    node = flow.nodes[name]
    source = name if name in whole.region.dims else flow.root(node.sources[0])
    dims = _leaves(whole.region.dims[source])
    if name not in whole.region.dims:
        dims = [dim for d, dim in enumerate(_seen(flow, whole, node)) if d not in node.dims]
    axes = [a for dim in dims for a in dim]
    lies = sorted(axes, key=place.__getitem__)
    shape = tuple(a.size if a in axes else 1 for a in sorted(place, key=place.__getitem__))
    bind = Bind(node=name, split=tuple(a.size for a in lies), order=tuple(map(lies.index, axes)))
    return source, shape, bind


def _seen(flow: Flow, whole: _Map, node: Node) -> list[list[Axis]]:
    """The dimensions of what a reduction takes."""
    name = node.sources[0]
    views: list[Node] = []
    while name not in whole.region.dims:
        views.append(flow.nodes[name])
        name = views[-1].sources[0]
    found = _leaves(whole.region.dims[name])
    for view in reversed(views):
        if view.op == "permute":
            found = [found[d] for d in view.dims]
        else:
            todo, found = [a for dim in found for a in dim], []
            for size in view.shape:
                found.append([todo.pop(0)] if size > 1 and todo and todo[0].size == size else [])
    return found
