"""Attention: a product of query and key, a map of its scores, and the product of what that gives with a value, as one
Program. It is found where a module writes it out (matmul, bmm, einsum; any views between) and where it calls torch's
scaled_dot_product_attention.

The domain is the output's, as that lies in memory, with the value's columns last; a copy that only brings heads side
by side is a part of it. Keys and values are read where they lay before their heads were repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilewright.facts.pattern import Match
from tilewright.ir.contraction import Contracted, contracted
from tilewright.ir.graph import Graph, Node
from tilewright.ir.program import POINTWISE, Program, Statement

from .attended import Attended, program_of
from .axes import Axis
from .axis_parts import Dims, through_views, whole_axes
from .direct_attention import direct, drops
from .program import write
from .region import Flow, GrownRegion, lay_out
from .scores import LogSum, logsum_of, scores_of

Found = tuple[Program, Match]
Unsupported = Callable[[Program], str | None]
_TYPES = ("f32", "f16", "bf16")


def attentions(flow: Flow, unsupported: Unsupported) -> tuple[list[Found], dict[str, str]]:
    """The attentions of a graph, and why others are left, by the names of their nodes."""
    found: list[Found] = []
    left: dict[str, str] = {}
    for node in flow.graph.nodes:
        if node.op != "call" or node.name not in flow.live or node.dtype not in _TYPES or 0 in node.shape:
            continue
        call = flow.calls[node.origin]
        if drops(call):
            left[node.name] = "attention with dropout: what it draws is torch's own"
            continue
        made = next((m for whole in _wholes(flow, node) if (m := program_of(flow, whole)) is not None), None)
        why = None if made is None else unsupported(made[0])
        if made is not None and why is None:
            found.append(made)
        elif why is not None:
            left[node.name] = why
    return found, left


def written_out(graph: Graph, unsupported: Unsupported) -> tuple[Attended, ...]:
    """The attentions that a graph has written out, of those that are supported: not those of one call."""
    flow = Flow(graph)
    calls = [
        n for n in graph.nodes if n.op == "call" and n.name in flow.live and n.dtype in _TYPES and 0 not in n.shape
    ]
    wholes = ((whole, program_of(flow, whole)) for node in calls for whole in _wholes(flow, node))
    return tuple(w for w, made in wholes if len(w.nodes) > 1 and made is not None and unsupported(made[0]) is None)


def _wholes(flow: Flow, node: Node) -> Iterator[Attended]:
    """What this result of a call may be, as an attention."""
    call = flow.calls[node.origin]
    if call.results != (node.name,) or call.ordered:
        return
    whole = direct(flow, node, call)
    if whole is not None:
        yield whole
        return
    second = contracted(call, flow.nodes, spread=True)
    if second is None or second.added or second.alpha != 1.0:
        return
    letters = second.letters
    yield from _with_weights(flow, node, (second.left, letters.left), (second.right, letters.right), letters.result)
    yield from _with_weights(flow, node, (second.right, letters.right), (second.left, letters.left), letters.result)


def _with_weights(
    flow: Flow, node: Node, weights: tuple[Node, str], value: tuple[Node, str], result: str
) -> Iterator[Attended]:  # fmt: skip
    """The same where this factor of the second product is the weights."""
    root = flow.root(weights[0].name)
    for product, inside, own, logsum in _maps(flow, root, node.name):
        region = lay_out(flow, inside, [root])
        if region is None or region.outputs != (root,):
            continue
        seen = through_views(flow, weights[0].name, root, whole_axes([_leaves(d) for d in region.dims[root]]))
        scored = [r.dims for r in region.reads.values() if r.root == product.node.name]
        if seen is None or not scored:
            continue
        whole = _assembled(flow, node, (product, region, own, scored[0]), (weights[1], seen), value, result)
        if whole is not None and logsum is not None and whole.softmax:
            rows = whole_axes([_leaves(d) for d in region.dims[logsum.largest]])
            whole = replace(whole, logsum=(flow.nodes[logsum.name], rows), nodes=(*whole.nodes, *logsum.nodes))
        if whole is not None and (logsum is None or whole.softmax):
            yield whole


def _leaves(dim: list[Axis]) -> list[Axis]:
    return [leaf for axis in dim for leaf in axis.leaves()]


class _Product:
    """The first product: its node, and what it contracts."""

    def __init__(self, node: Node, found: Contracted) -> None:
        self.node, self.found = node, found


def _maps(
    flow: Flow, root: str, reader: str
) -> Iterator[tuple[_Product, frozenset[str], frozenset[str], LogSum | None]]:
    """Each product of which a value may be made by what one kernel computes, the nodes of that, and those of them that
    depend on the product, which nothing else may read but the logarithm of the sums."""
    if not flow.fusable(root) or root in flow.kept or set(flow.readers[root]) != {reader}:
        return
    seen: dict[str, None] = {}
    ends: dict[str, None] = {}
    todo = [root]
    while todo:
        name = todo.pop()
        if name in seen or name in ends:
            continue
        if flow.fusable(name) or flow.nodes[name].op == "index":
            seen[name] = None
            todo += flow.roots(flow.nodes[name])
        else:
            ends[name] = None
    for name in ends:
        call = flow.calls.get(flow.nodes[name].origin)
        found = contracted(call, flow.nodes, spread=True) if call is not None and call.results == (name,) else None
        if found is None or found.added:
            continue
        own = _depending(flow, seen, name)
        logsum = logsum_of(flow, own)
        readers = {*own, reader, *(logsum.nodes if logsum else ())}
        if root not in own or any(n in flow.kept or not set(flow.readers[n]) <= readers for n in (name, *own)):
            continue
        yield _Product(flow.nodes[name], found), own | entering(flow, own), own, logsum


def entering(flow: Flow, own: frozenset[str]) -> frozenset[str]:
    """What is computed beside the product and enters its map, where a kernel then reads less: masks and biases of
    positions and of smaller tensors."""
    found: set[str] = set()
    for source in {s for n in own for s in flow.roots(flow.nodes[n])} - own:
        made, read = _pointwise(flow, source)
        if made and source in made and sum(map(flow.loaded, read)) < flow.nodes[source].bytes:
            found |= made
    return frozenset(found)


def _pointwise(flow: Flow, name: str) -> tuple[set[str], set[str]]:
    """The pointwise nodes that make a value, and what they read."""
    made, read, todo = set[str](), set[str](), [name]
    while todo:
        node = flow.nodes[todo.pop()]
        if flow.fusable(node.name) and node.op in POINTWISE and node.op != "inside":
            made.add(node.name)
            todo += [s for s in flow.roots(node) if s not in made]
        elif node.op != "index":
            read.add(node.name)
    return made, read


def _depending(flow: Flow, names: dict[str, None], on: str) -> frozenset[str]:
    found = {on}
    for name in sorted(names, key=flow.position.__getitem__):
        if any(source in found for source in flow.roots(flow.nodes[name])):
            found.add(name)
    return frozenset(found - {on})


def _assembled(
    flow: Flow, node: Node, first: tuple[_Product, GrownRegion, frozenset[str], list[list[Axis]]],
    weights: tuple[str, Dims], value: tuple[Node, str], result: str,
) -> Attended | None:  # fmt: skip
    product, region, own, scored = first
    program, site = write(flow, region)
    scores = scores_of(program)
    mine = [i for i, bind in enumerate(site.operands) if bind.node == product.node.name]
    if scores is None or len(mine) != 1 or program.operands[mine[0]].shape != program.domain:
        return None
    of = dict(zip(weights[0], weights[1], strict=True))
    summed = [c for c in weights[0] if c in value[1] and c not in result and of[c]]
    columns = [c for c in value[1] if c in result and c not in weights[0]]
    alone = [c for c in weights[0] if c not in result and of[c] and c not in summed]
    if len(summed) != 1 or len(columns) != 1 or alone or len(of[summed[0]]) != 1:
        return None
    keys = of[summed[0]][0].axis
    if scores.reduced is not None and region.domain[scores.reduced] is not keys:
        return None
    column = Axis(value[0].shape[value[1].index(columns[0])])
    of[columns[0]] = whole_axes([[column]])[0]
    sides = _sides(product.found, whole_axes([_leaves(d) for d in scored]), keys)
    if sides is None:
        return None
    query, key, depth = sides
    sink = [i for i, o in enumerate(program.operands) if o.name == scores.sink]
    others = [*(i for i in range(len(site.operands)) if i not in (mine[0], *sink)), *sink]
    body = replace(
        scores.program, operands=tuple(program.operands[i] for i in (mine[0], *others)), reduced=(),
    )  # fmt: skip
    if product.found.alpha != 1.0:
        body = _scaled(body, product.found.alpha)
    return Attended(
        node=node, dims=tuple(of[c] for c in result), query=query, key=key,
        value=(value[0], _of_node(value[0], [of[c] for c in value[1]])), keys=keys, depth=depth, column=column,
        scores=body, axes=region.domain, binds=tuple(site.operands[i] for i in others),
        softmax=scores.softmax, sink=bool(sink), empty_is_zero=False, spares=flow.graph.sparing,
        nodes=(product.node.name, *site.nodes, node.name),
        spared=(product.node.name, *sorted(own)),
    )  # fmt: skip


def _scaled(program: Program, alpha: float) -> Program:
    """The same of a product that is scaled first."""
    product = program.operands[0]
    scaled = Statement(result="scaled", op="mul", args=(product.name, alpha), dtype=product.dtype)
    body = [
        replace(i, args=tuple("scaled" if a == product.name else a for a in i.args))
        for i in program.body
        if isinstance(i, Statement)
    ]
    outputs = tuple(replace(o, name="scaled") if o.name == product.name else o for o in program.outputs)
    return replace(program, body=(scaled, *body), outputs=outputs)


def _of_node(node: Node, dims: list[tuple[object, ...]]) -> Dims:
    """Dimensions of a factor: what it has once, and is broadcast, moves along nothing."""
    return tuple(() if size == 1 else dim for size, dim in zip(node.shape, dims, strict=True))  # type: ignore[misc]


def _sides(
    found: Contracted, scored: Dims, keys: Axis
) -> tuple[tuple[Node, Dims], tuple[Node, Dims], Axis] | None:  # fmt: skip
    """Query and key of the first product, by the dimensions of its result, and the axis that it contracts."""
    of = dict(zip(found.letters.result, scored, strict=True))
    left, right = found.letters.left, found.letters.right
    summed = [c for c in left if c in right and c not in of]
    if len(summed) != 1 or any(c not in of and c not in summed for c in left + right):
        return None
    depth = Axis(found.left.shape[left.index(summed[0])])
    of[summed[0]] = whole_axes([[depth]])[0]
    made = [(node, _of_node(node, [of[c] for c in word])) for node, word in ((found.left, left), (found.right, right))]
    along = [any(p.axis is keys for dim in dims for p in dim) for _, dims in made]
    if along[0] == along[1] or depth.size != found.right.shape[right.index(summed[0])]:
        return None
    query, key = made[::-1] if along[0] else made
    return query, key, depth
