"""A graph that is being rewritten: its nodes, and those that are to stand in the place of one."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.graph import TRACED, Call, Graph, Node, Ref, Struct

from ..lowering.lower import Builder, Expr
from ..prune import pruned
from .readers import Readers

_EINSUM = "aten.einsum.default"


class Draft(Builder):
    """Appends nodes to those of a graph, and products as calls of their own, `more`."""

    def __init__(self, index: Readers) -> None:
        super().__init__()
        self.nodes.update(index.nodes)
        self.more: list[Call] = []
        self._index = index

    def einsum(self, left: tuple[Expr, str], right: tuple[Expr, str], result: str, dtype: str) -> Expr:
        """The product of two factors with their letters, in this dtype."""
        name = f"{self.origin}_{len(self.more)}"
        factors = tuple(Ref(name=x.to(dtype).node.name) for x, _ in (left, right))
        sizes = dict((*zip(left[1], left[0].shape, strict=True), *zip(right[1], right[0].shape, strict=True)))
        self.more.append(Call(
            name=name, target=_EINSUM, args=(f"{left[1]},{right[1]}->{result}", Struct(kind="list", items=factors)),
            results=(name,),
        ))  # fmt: skip
        shape = tuple(sizes[c] for c in result)
        return self.add(Node(name=name, op="call", shape=shape, dtype=dtype, origin=name))

    def replaced(self, node: Node, value: Expr) -> Graph:
        """The graph with `value` under the node's name. What its call did is spelt out from now on."""
        graph = self._index.graph
        made = [n for name, n in self.nodes.items() if name not in self._index.nodes and name != value.node.name]
        calls = {c.name for c in self.more}
        mine = [n if n.origin in calls else replace(n, origin=node.origin) for n in (*made, value.node)]
        if mine[-1].origin in calls:  # a call's result is known by another name
            (last,) = (i for i, c in enumerate(self.more) if c.name == mine[-1].origin)
            self.more[last] = replace(self.more[last], results=(node.name,))
        mine[-1] = replace(mine[-1], name=node.name, order=node.order)
        nodes = [m for n in graph.nodes for m in (mine if n.name == node.name else (n,))]
        changed: list[Call] = []
        for call in graph.calls:
            spelt = replace(call, target=f"{TRACED}{call.label}", args=(), kwargs=())
            changed += (*self.more, spelt) if call.name == node.origin else (call,)
        return pruned(replace(graph, nodes=tuple(nodes), calls=tuple(changed), free=()))
