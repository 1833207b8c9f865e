"""Who reads what of a graph."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.graph import VIEWS, Graph, Node


class Readers:
    """A graph by names: nodes, calls, and the nodes that read each node, a call's all its results."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = {n.name: n for n in graph.nodes}
        self.calls = {c.name: c for c in graph.calls}
        self.readers: dict[str, list[str]] = {n.name: [] for n in graph.nodes}
        self._kept = {*graph.outputs, *(u.value for u in graph.updates), *(u.target for u in graph.updates)}
        for node in graph.nodes:
            for source in dict.fromkeys(self.calls[node.origin].sources if node.op == "call" else node.sources):
                self.readers[source].append(node.name)

    def kept(self, name: str) -> bool:
        """Whether somebody outside of the graph has it."""
        return name in self._kept

    def viewed(self, name: str) -> Node:
        """What a value is a view of."""
        node = self.nodes[name]
        while node.op in VIEWS:
            node = self.nodes[node.sources[0]]
        return node

    def alone(self, name: str) -> bool:
        """Whether one operator alone reads this, and nobody outside of the graph."""
        return name not in self._kept and len(self.readers[name]) == 1

    def chain(self, node: Node) -> Iterator[tuple[str, Node]]:
        """What alone reads this node, what alone reads that, and so on, each with the name of what it reads."""
        while self.alone(node.name):
            reader = self.nodes[self.readers[node.name][0]]
            if (self.calls[reader.origin] if reader.op == "call" else reader).sources.count(node.name) != 1:
                return
            yield node.name, reader
            node = reader
