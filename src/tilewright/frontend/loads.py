"""Loads go before the pointwise operations whose results they read, so that nobody writes a value only to pool it.

The maximum of windows over `relu(x)` is one over `relu` of windows of `x`. What lies in several windows is then
computed for each of them, so this is done only where that costs little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.access import Position
from tilewright.ir.graph import Graph, Node
from tilewright.ir.program import POINTWISE, REDUCTIONS, SCANS

# Additions an element of a value, counted for each load that comes to it, up to which they are cheaper than writing and
# reading it. A function of libm counts for several.
MOST_REPEATED = 64
FUNCTION_COST = 8
WEIGHTED_TIMES = 9  # as which larger windows count, where weights are multiplied in: it is done once in a tile (GPUs)
_CHEAP = frozenset({"neg", "abs", "sign", "floor", "ceil", "round", "trunc", "square", "reciprocal", "sqrt", "isnan",
                    "isinf", "logical_not", "bitwise_not", "to", "add", "sub", "mul", "div", "maximum", "minimum", "eq",
                    "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and",
                    "bitwise_or", "bitwise_xor", "where"})  # fmt: skip


def loaded_early(graph: Graph) -> Graph:
    """The same values; the graph must be pruned, and the result may hold nodes that nobody needs any more."""
    around = _Around.of(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        moved = around.moved(node) if node.op == "load" else None
        nodes += moved or [node]
    return replace(graph, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """What must be known of a graph to move a load."""

    nodes: Mapping[str, Node]
    readers: Mapping[str, list[str]]
    fixed: frozenset[str]  # needed in memory anyway, or made from statistics or positions

    @staticmethod
    def of(graph: Graph) -> _Around:
        nodes = {n.name: n for n in graph.nodes}
        readers: dict[str, list[str]] = {name: [] for name in nodes}
        fixed = {*graph.outputs, *(name for u in graph.updates for name in (u.target, u.value))}
        settled: set[str] = set()
        for node in graph.nodes:
            for source in node.sources:
                readers[source].append(node.name)
            if node.op in REDUCTIONS or node.op in SCANS or node.op == "index" or settled & set(node.sources):
                settled.add(node.name)
        for call in graph.calls:
            made = {nodes[r].op for r in call.results if r in nodes and nodes[r].origin == call.name}
            if call.ordered or "call" in made:
                fixed.update(call.sources)
        return _Around(nodes=nodes, readers=readers, fixed=frozenset(fixed | settled))

    def moved(self, load: Node) -> list[Node] | None:
        """What computes this load from loads of what its source is made of; None where it stays."""
        source = self.nodes[load.sources[0]]
        chain = self._chain(source, load.name)
        if not chain or len(load.sources) > 1:
            return None
        times, costly = prod(load.shape) / prod(source.shape), chain
        if self._weighted(load):
            times, costly = min(times, WEIGHTED_TIMES), [n for n in chain if n.op != "to"]
        if times * sum(_cost(n) for n in costly if prod(n.shape) == prod(source.shape)) > MOST_REPEATED:
            return None
        return _Move(self.nodes, load, source).nodes_for(chain)

    def _weighted(self, load: Node) -> bool:
        """Whether products of what is loaded are summed, as in a depthwise convolution."""
        products = [load.name]
        for ops in (("to",), ("mul",)):
            found = [r for name in products for r in self.readers[name] if self.nodes[r].op in ops]
            products = found or (products if ops == ("to",) else [])
        return any(self.nodes[r].op == "sum" for name in products for r in self.readers[name])

    def _chain(self, source: Node, load: str) -> list[Node]:
        """The pointwise nodes that are there for this source alone, in the graph's order."""
        chain = [source] if self._may_move(source) else []
        inside = {n.name for n in chain}
        if any(self.nodes[r].op != "load" for r in self.readers[source.name]):
            return []
        for node in reversed(tuple(self.nodes.values())):
            mine = bool(inside & set(self.readers[node.name])) and inside.issuperset(self.readers[node.name])
            if node.name not in inside and mine and self._may_move(node):
                chain.append(node)
                inside.add(node.name)
        return chain[::-1]

    def _may_move(self, node: Node) -> bool:
        return node.op in POINTWISE and node.op != "inside" and node.name not in self.fixed


def _cost(node: Node) -> int:
    return 1 if node.op in _CHEAP else FUNCTION_COST


class _Move:
    """One load of `source`, made again from loads of what the source's chain reads."""

    def __init__(self, nodes: Mapping[str, Node], load: Node, source: Node) -> None:
        self.nodes, self.load, self.source = nodes, load, source
        self.made: dict[str, Node] = {}  # by the name of what they stand for

    def nodes_for(self, chain: list[Node]) -> list[Node] | None:
        inside = {n.name for n in chain}
        for node in chain:
            for name in node.sources:
                if name not in inside and name not in self.made:
                    part = self._read(self.nodes[name])
                    if part is None:
                        return None
                    self.made[name] = part
            self.made[node.name] = replace(
                node.renamed({s: self.made[s].name for s in node.sources}), name=self._name(node.name),
                shape=self._shape(node))  # fmt: skip
        made = list(self.made.values())
        result = made.pop()
        if result.shape != self.load.shape:
            return None
        if self.load.fill is None:
            return [*made, replace(result, name=self.load.name)]
        whole = next((n for n in made if n.op == "load" and n.at == self.load.at), None)
        if whole is None:
            return None
        origin = self.load.origin
        where = Node(name=f"{self.load.name}_inside", op="inside", shape=whole.shape, dtype="bool",
                     args=(whole.name, False), dims=self.source.shape, at=whole.at, origin=origin)  # fmt: skip
        masked = Node(name=self.load.name, op="where", shape=self.load.shape, dtype=self.load.dtype,
                      args=(where.name, result.name, self.load.fill), origin=origin)  # fmt: skip
        return [*made, result, where, masked]

    def _name(self, name: str) -> str:
        return f"{self.load.name}_of_{name}"

    def _along(self, node: Node) -> list[Position]:
        """Where the node's dimensions, which broadcast to the source's, are read; those of size 1 at their start."""
        rank = len(node.shape)
        return [Position() if size == 1 else self.load.at[len(self.load.at) - rank + d]
                for d, size in enumerate(node.shape)]  # fmt: skip

    def _shape(self, node: Node) -> tuple[int, ...]:
        """That of what stands for this node: 1 where it does not vary."""
        dims = {d for position in self._along(node) for d, _ in position.steps}
        return tuple(size if d in dims else 1 for d, size in enumerate(self.load.shape))

    def _read(self, leaf: Node) -> Node | None:
        along, shape = self._along(leaf), self._shape(leaf)
        if self._stands_still(leaf, along):
            return Node(name=self._name(leaf.name), op="reshape", shape=shape, dtype=leaf.dtype, args=(leaf.name,),
                        origin=self.load.origin)  # fmt: skip
        if leaf.op == "index":
            return None
        within = all(p.surely_inside(size, shape) for p, size in zip(along, leaf.shape, strict=True))
        args = (leaf.name,) if within else (leaf.name, 0)
        return Node(name=self._name(leaf.name), op="load", shape=shape, dtype=leaf.dtype, args=args, at=tuple(along),
                    origin=self.load.origin)  # fmt: skip

    def _stands_still(self, leaf: Node, along: list[Position]) -> bool:
        """Whether each dimension that the leaf has goes by as one of the load's, from its start and step by step."""
        dims = []
        for position, size in zip(along, leaf.shape, strict=True):
            if size == 1:
                continue
            if position.start or len(position.steps) != 1 or position.steps[0][1] != 1:
                return False
            dims.append(position.steps[0][0])
            if self.load.shape[dims[-1]] != size:
                return False
        return dims == sorted(dims)
