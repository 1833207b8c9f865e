"""Slices go before the pointwise operations that they cut, so that nobody writes a value only to read its parts.

`(x + b).chunk(2)` is two sums of halves: one kernel may hold both, where the sum of the wholes would be another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.ir.graph import VIEWS, Graph, Node, Ref, Struct, Template
from tilewright.ir.program import POINTWISE, REDUCTIONS, SCANS

_MOVES = VIEWS | {"slice"}


def sliced_early(graph: Graph) -> Graph:
    """The same values, with every slice as near to its source as pays; the graph must be pruned, and the
    result may hold slices that nobody needs any more."""
    while True:
        cuts = _Cuts.of(graph)
        chosen = {n.name: parts for n in graph.nodes if (parts := cuts.parts(n))}
        if not chosen:
            return graph
        graph = _merged(_pulled(graph, chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cuts:
    """What must be known of a graph to judge a cut."""

    readers: dict[str, list[Node]]
    kept: frozenset[str]  # needed in memory: by the caller, or by operators that only torch has
    whole: frozenset[str]  # read by an operator that may be left to torch, with all that it reads
    settled: frozenset[str]  # made from positions or statistics, in a kernel that should not be torn apart

    @staticmethod
    def of(graph: Graph) -> _Cuts:
        nodes = {n.name: n for n in graph.nodes}
        readers: dict[str, list[Node]] = {name: [] for name in nodes}
        settled: set[str] = set()
        for node in graph.nodes:
            for source in node.sources:
                readers[source].append(node)
            if node.op == "index" or node.op in REDUCTIONS or node.op in SCANS or settled & set(node.sources):
                settled.add(node.name)
        kept = {*graph.outputs, *(name for u in graph.updates for name in (u.target, u.value))}
        whole: set[str] = set()
        for call in graph.calls:
            made = {nodes[r].op for r in call.results if r in nodes and nodes[r].origin == call.name}
            if call.ordered or "call" in made:
                kept.update(call.sources)
            elif made - _MOVES:
                whole.update(call.sources)
        return _Cuts(readers=readers, kept=frozenset(kept), whole=frozenset(whole), settled=frozenset(settled))

    def parts(self, node: Node) -> list[Node]:
        """The slices that may take this node's place; none where it must stay."""
        parts = self.readers[node.name]
        if node.op not in POINTWISE or node.name in self.kept | self.whole | self.settled:
            return []
        if any(p.op != "slice" or p.dims[0] != parts[0].dims[0] or not self._fuses(p) for p in parts):
            return []
        spans = sorted(p.dims[1:] for p in parts)
        return parts if all(start + length <= after for (start, length), (after, _) in pairwise(spans)) else []

    def _fuses(self, node: Node) -> bool:
        """Whether only kernels read this value: then none of it need be written."""
        readers = self.readers[node.name]
        return node.name not in self.kept and bool(readers) and all(
            self._fuses(r) if r.op in _MOVES else r.op in POINTWISE or r.op in REDUCTIONS or r.op in SCANS
            for r in readers)  # fmt: skip


def _pulled(graph: Graph, chosen: Mapping[str, list[Node]]) -> Graph:
    """Every chosen node made once for each of its parts, under the part's name; calls that name it name its first."""
    known = {n.name: n for n in graph.nodes}
    gone = {part.name for parts in chosen.values() for part in parts}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in chosen:
            for part in chosen[node.name]:
                nodes += _cut(node, part, known)
        elif node.name not in gone:
            nodes.append(node)
    first = {name: parts[0].name for name, parts in chosen.items()}
    calls = tuple(replace(c, args=tuple(_renamed(a, first) for a in c.args),
                          kwargs=tuple((k, _renamed(v, first)) for k, v in c.kwargs)) for c in graph.calls)  # fmt: skip
    return replace(graph, nodes=tuple(nodes), calls=calls)


def _cut(node: Node, part: Node, known: Mapping[str, Node]) -> list[Node]:
    """`part` of `node`, after the slices of its arguments from which it is made; what broadcasts is read as it is."""
    dim, start, length = part.dims
    slices: dict[str, Node] = {}
    for source in dict.fromkeys(node.sources):
        shape, dtype = known[source].shape, known[source].dtype
        d = dim - len(node.shape) + len(shape)
        if d >= 0 and shape[d] != 1:
            slices[source] = Node(name=f"{part.name}_of_{source}", op="slice", dtype=dtype, origin=node.origin,
                                  shape=(*shape[:d], length, *shape[d + 1 :]), args=(source,),
                                  dims=(d, start, length))  # fmt: skip
    args = tuple(slices[a].name if isinstance(a, str) and a in slices else a for a in node.args)
    return [*slices.values(), replace(node, name=part.name, shape=part.shape, args=args)]


def _renamed(template: Template, names: Mapping[str, str]) -> Template:
    if isinstance(template, Ref):
        return Ref(name=names.get(template.name, template.name))
    if isinstance(template, Struct):
        return replace(template, items=tuple(_renamed(item, names) for item in template.items))
    return template


def _merged(graph: Graph) -> Graph:
    """Equal slices of one value are one for the nodes that read them."""
    first: dict[tuple[str, tuple[int, ...]], str] = {}
    same: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        nodes.append(node.renamed(same))
        if node.op == "slice":
            same[node.name] = first.setdefault((node.sources[0], node.dims), node.name)
    return replace(graph, nodes=tuple(nodes))
