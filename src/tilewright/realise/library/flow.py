"""Who makes and who reads each value of a graph: what libraries walk along to find what they realise."""

from __future__ import annotations

from tilewright.ir.graph import Call, Graph, Node, Ref, Template


class ValueFlow:
    """`makers`: by a value's name, the operator whose only result it is; `readers`: those that take it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = {n.name: n for n in graph.nodes}
        self.makers = {c.results[0]: c for c in graph.calls if len(c.results) == 1 and c.results[0]}
        self.readers: dict[str, list[Call]] = {}
        for call in graph.calls:
            for name in dict.fromkeys(call.sources):
                self.readers.setdefault(name, []).append(call)
        self.kept = {*graph.outputs, *(u.value for u in graph.updates)}

    def only_reader(self, call: Call) -> Call | None:
        """The operator that alone takes the result of this one, which nothing else keeps."""
        (name,) = call.results
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.kept else None

    def node(self, value: Template) -> Node | None:
        """The tensor that an argument is; None where it is none."""
        return self.nodes[value.name] if isinstance(value, Ref) else None

    def maker(self, value: Template, label: str) -> Call | None:
        """The operator of this short name that makes an argument."""
        call = self.makers.get(value.name) if isinstance(value, Ref) else None
        return call if call is not None and call.label == label else None
