"""Cutting a training graph into Segments: as much as can be differentiated here, between what is left to torch.

What lies behind the same number of operators left to torch, counted along the longest way, is one Segment: no way leads
out of it and back into it, since every such way passes one operator more. A product of matrices counts as such an
operator, and can be the first of what lies behind it: then what reads it is computed on its way out, what makes the
gradient of its result sums that for the bias, too, and gradients of what several products read are added up on the way
out of the last. Its derivative is two products more, and kernels may do all three. An attention is a segment by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from tilewright.facts.segment import Segment
from tilewright.ir.contraction import contracted
from tilewright.ir.convolution import convolved
from tilewright.ir.graph import SOURCES, VIEWS, Call, Graph, Node, Ref, Struct
from tilewright.ir.program import DTYPE_BYTES, POINTWISE, REDUCTIONS, SCANS

from ..lowering.lower import FLOATS
from .attended import AttentionNodes, differentiable, logsum_nodes, softmax_of
from .convolutions import leads_through_convolution
from .reverse import derived, has_rule, leads_through

_MOVES = VIEWS | {"slice", "index"}  # made by whoever reads them


def segments(
    graph: Graph, *, first_id: int = 0, products: bool = False, but: Collection[str] = (),
    attended: Sequence[AttentionNodes] = (),
) -> tuple[Segment, ...]:  # fmt: skip
    """The segments of a graph whose `wanted` says which gradients are asked for: of what is neither a product nor left
    to torch in the graph's order, with the products, if they are asked for, that it reads; then the other products,
    those of one operand together. `but`: results of products that stay torch's. Each of the `attended` is a segment by
    itself where its derivative is known."""
    cut = _Cut(graph, but, attended)
    parts: list[tuple[Collection[str], AttentionNodes | None]] = [(a.inside, a) for a in cut.attended]
    parts += [(inside, None) for inside in (_joined(cut) if products else _layers(cut))]
    found = [_segment(cut, f"segment_{first_id + i}", *part) for i, part in enumerate(parts)]
    return tuple(s for s in found if s is not None)


class _Cut:
    """Which nodes of a training graph are computed here, how deep each lies, and who reads it."""

    def __init__(self, graph: Graph, but: Collection[str], attended: Sequence[AttentionNodes]) -> None:
        self.graph = graph
        self.nodes = {n.name: n for n in graph.nodes}
        self.calls = {c.name: c for c in graph.calls}
        self.wanted = self._wanted()
        self.attended = tuple(a for a in attended if _is_led(self, a))
        self.apart = {name: a for a in self.attended for name in a.own}  # the attention that a node is a part of
        self.but = {*but, *self.apart}
        self.ours = self._ours()
        self.depth = self._depth()
        self.readers = self._readers()

    def operands(self, product: Node) -> tuple[str, str]:
        """What a product multiplies, or of what that is a view or a part."""
        call = self.calls[product.origin]
        convolution = convolved(call, self.nodes, types=FLOATS)
        if convolution is not None:
            return self.root(convolution.x.name), self.root(convolution.weight.name)
        found = contracted(call, self.nodes)
        assert found is not None
        return self.root(found.left.name), self.root(found.right.name)

    def is_product(self, node: Node) -> bool:
        call = self.calls.get(node.origin)
        if node.op != "call" or call is None or call.results != (node.name,) or call.ordered or node.name in self.but:
            return False
        convolution = convolved(call, self.nodes, types=FLOATS)
        if convolution is not None:
            return leads_through_convolution(convolution)
        found = contracted(call, self.nodes)
        alike = found is not None and {node.dtype, found.left.dtype, found.right.dtype} == {node.dtype}
        return found is not None and alike and node.dtype in FLOATS and leads_through(found)

    def _wanted(self) -> frozenset[str]:
        """The values through which gradients go."""
        found = set(self.graph.wanted)
        for node in self.graph.nodes:
            call = self.calls.get(node.origin) if node.op == "call" else None
            sources = call.sources if call is not None else node.sources
            stops = call is not None and call.label == "detach"
            if node.dtype in FLOATS and not stops and any(s in found for s in sources):
                found.add(node.name)
        return frozenset(found)

    def _ours(self) -> frozenset[str]:
        """The calls that are done here: all of their nodes are known, and differentiable where gradients go."""
        theirs = {n.origin for n in self.graph.nodes if not self._known(n)}
        theirs |= {c.name for c in self.graph.calls if c.ordered}
        return frozenset(self.calls) - theirs

    def _known(self, node: Node) -> bool:
        if node.op in SOURCES or node.op == "index":
            return True
        around = (node, *(self.nodes[s] for s in node.sources))
        if any(v.dtype not in DTYPE_BYTES or 0 in v.shape for v in around):
            return False
        known = (
            node.op in POINTWISE or node.op in REDUCTIONS or node.op in SCANS or node.op in _MOVES or node.op == "load"
        )
        led = any(s in self.wanted for s in node.sources) and node.name in self.wanted
        return known and (not led or has_rule(node))

    def computes(self, node: Node) -> bool:
        ours = node.op not in SOURCES and node.op not in _MOVES and node.origin in self.ours
        return ours and node.name not in self.apart

    def _readers(self) -> dict[str, list[str]]:
        """By value: those computed here that read it, or views or parts of it."""
        found: dict[str, list[str]] = {}
        for node in filter(self.computes, self.graph.nodes):
            for source in node.sources:
                found.setdefault(self.root(source), []).append(node.name)
        return found

    def _depth(self) -> dict[str, int]:
        """By node: the operators of torch on the longest way to it; all that a call of ours makes has one depth."""
        depth: dict[str, int] = {}
        reached: dict[str, int] = {}
        for node in self.graph.nodes:
            call = self.calls.get(node.origin)
            if call is None:
                depth[node.name] = 0
                continue
            if node.name in self.apart:
                whole = self.apart[node.name]  # what it reads may come behind its other parts
                read = _read_by(self, whole) if node.name == whole.result else ()
                depth[node.name] = 1 + max((depth[name] for name in read), default=0)
                continue
            if call.name not in reached:
                reached[call.name] = self._behind(call, depth) + (call.name not in self.ours)
            own = max((depth[s] for s in node.sources), default=0) if node.op in _MOVES else reached[call.name]
            depth[node.name] = own
        return depth

    def _behind(self, call: Call, depth: dict[str, int]) -> int:
        sources = [*call.sources, *(s for n in self.graph.nodes if n.origin == call.name for s in n.sources)]
        return max((depth[s] for s in sources if s in depth), default=0)

    def root(self, name: str) -> str:
        """The value of which this is a view or a part."""
        while self.nodes[name].op in VIEWS or self.nodes[name].op == "slice":
            name = self.nodes[name].sources[0]
        return name


def _is_led(cut: _Cut, whole: AttentionNodes) -> bool:
    """Whether gradients are led through both factors of the weights' product, and can be."""
    found = contracted(cut.calls[cut.nodes[whole.result].origin], cut.nodes)
    led = found is not None and {found.left.name, found.right.name} <= cut.wanted
    return led and differentiable(whole, cut.nodes, cut.calls)


def _read_by(cut: _Cut, whole: AttentionNodes) -> set[str]:
    """What is read from outside for an attention, which is as one operator of torch."""
    found: set[str] = set()
    for name in whole.inside:
        node = cut.nodes[name]
        found |= {*(cut.calls[node.origin].sources if node.op == "call" else node.sources)}
    return {name for name in found if cut.root(name) not in whole.inside}


def _layers(cut: _Cut) -> list[set[str]]:
    """What is computed here, by depth."""
    mine = [n.name for n in cut.graph.nodes if cut.computes(n)]
    depths = sorted({cut.depth[name] for name in mine})
    return [{name for name in mine if cut.depth[name] == depth} for depth in depths]


def _joined(cut: _Cut) -> list[set[str]]:
    """The layers with the products of their depth that they read, and those that share an operand which wants a
    gradient, together; nothing of one depth waits for a product of it. Where there is no layer, products alone."""
    parts = _layers(cut)
    homes = {name: part for part in parts for name in part}
    owners: dict[tuple[int, str], str] = {}
    for node in filter(cut.is_product, cut.graph.nodes):
        depth, (left, right) = cut.depth[node.name], cut.operands(node)
        met = [r for r in cut.readers.get(node.name, ()) if cut.depth[r] == depth]
        met += [owners.setdefault((depth, root), node.name) for root in (left, right) if root in cut.wanted]
        mine = homes[node.name] = {node.name}
        parts.append(mine)
        for home in map(homes.__getitem__, met):
            if home is not mine:
                home |= mine
                homes.update(dict.fromkeys(mine, home))
                mine.clear()
                mine = home
    return [part for part in parts if part]


def _segment(cut: _Cut, id: str, inside: Collection[str], whole: AttentionNodes | None) -> Segment | None:
    outputs = _outputs(cut, inside) if whole is None else [whole.result]
    body = _body(cut, inside, outputs)
    inputs = [name for name in body if name not in inside and cut.nodes[name].op not in _MOVES]
    graded = [o for o in outputs if o in cut.wanted]
    if not graded:
        return None  # nothing to differentiate: torch's own operators, or another run's kernels, do it
    calls = tuple(c.name for c in cut.graph.calls if any(n.origin == c.name for n in map(cut.nodes.get, body) if n))
    ordered = [n for n in cut.graph.nodes if n.name in body]
    forward = _graph(cut, ordered, inputs, outputs)
    if whole is not None:
        forward = replace(forward, nodes=(*forward.nodes, *_logsum(forward, whole)))
    prefix = f"{id.replace('segment_', 's')}_"
    found = derived(forward, cut.wanted & set(body), prefix=prefix, whole=whole)
    results = tuple(dict.fromkeys((*outputs, *found.saved)))
    forward = replace(forward, nodes=(*forward.nodes, *found.made), outputs=results)
    forward = replace(forward, result=_tuple(forward.outputs))
    own = [c for c in calls if any(cut.nodes[n].origin == c for n in inside)]
    return Segment(
        id=id, title=" -> ".join(dict.fromkeys(cut.calls[c].label for c in own)), calls=tuple(own),
        inputs=tuple(inputs), outputs=tuple(outputs), saved=found.saved, kept=found.kept, graded=found.graded,
        forward=forward, backward=found.backward,
    )  # fmt: skip


def _logsum(forward: Graph, whole: AttentionNodes) -> tuple[Node, ...]:
    nodes = {n.name: n for n in forward.nodes}
    softmax = softmax_of(whole, nodes, {c.name: c for c in forward.calls})
    return () if softmax is None else logsum_nodes(softmax, nodes)


def _outputs(cut: _Cut, inside: Collection[str]) -> list[str]:
    """What others need of these values; they make views of them themselves."""
    asked = [*cut.graph.outputs, *(u.value for u in cut.graph.updates)]
    for call in cut.graph.calls:
        if call.name not in cut.ours:
            asked += call.sources
    for node in cut.graph.nodes:
        if cut.computes(node) and node.name not in inside:
            asked += node.sources
    for whole in cut.attended:
        asked += () if whole.inside is inside else _read_by(cut, whole)
    roots = {cut.root(name) for name in asked}
    return [n.name for n in cut.graph.nodes if n.name in roots and n.name in inside]


def _body(cut: _Cut, inside: Collection[str], outputs: Iterable[str]) -> dict[str, None]:
    """All that leads to the outputs from outside, with the inputs."""
    body: dict[str, None] = {}
    todo = list(outputs)
    while todo:
        name = todo.pop()
        if name in body:
            continue
        body[name] = None
        node = cut.nodes[name]
        if name in inside or node.op in _MOVES:
            todo += cut.calls[node.origin].sources if node.op == "call" else node.sources
    order = {n.name: i for i, n in enumerate(cut.graph.nodes)}
    return dict.fromkeys(sorted(body, key=order.__getitem__))


def _graph(cut: _Cut, nodes: list[Node], inputs: list[str], outputs: list[str]) -> Graph:
    taken: set[str] = set()
    own = [_input(n, taken) if n.name in inputs else n for n in nodes]
    names = {n.name for n in own}
    origins = dict.fromkeys(n.origin for n in own if n.origin)
    return Graph(
        nodes=tuple(own), outputs=tuple(outputs), calls=tuple(_call(cut.calls[o], names) for o in origins),
        arguments=tuple(Ref(name=name) for name in inputs), result=_tuple(outputs),
    )  # fmt: skip


def _input(node: Node, taken: set[str]) -> Node:
    """A node as an input under its own name, and under a path that no other input has."""
    path = node.path.replace(".", "_") if node.op in ("input", "state") else node.origin or node.name
    if not path.isidentifier() or path in taken or path.startswith(("upstream_", "saved_", "segment_", "argument")):
        path = f"x_{len(taken)}"
    taken.add(path)
    return Node(name=node.name, op="input", shape=node.shape, dtype=node.dtype, order=node.order, path=path)


def _call(call: Call, names: Collection[str]) -> Call:
    """A call that could be run here as a whole, or a stand-in for titles."""
    if all(s in names for s in call.sources):
        return replace(call, results=tuple(r if r in names else "" for r in call.results))
    return replace(call, args=(), kwargs=(), results=())


def _tuple(names: Iterable[str]) -> Struct:
    return Struct(kind="tuple", items=tuple(Ref(name=n) for n in names))
