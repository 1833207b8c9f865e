"""A graph that is being rewritten: its nodes, and those that are to stand in the place of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilewright.ir.graph import TRACED, Call, Graph, Node, Ref, Struct, Template

from ..lowering.lower import Builder, Expr
from ..prune import pruned
from .readers import Readers
from .sides import Side

_EINSUM = "aten.einsum.default"


class Draft(Builder):
    """Appends nodes to those of a graph, and products as calls of their own, `more`."""

    def __init__(self, index: Readers) -> None:
        super().__init__()
        self.nodes.update(index.nodes)
        self.more: list[Call] = []
        self._index = index

    def fresh(self) -> str:
        name = super().fresh()
        while name in self.nodes:
            name = super().fresh()
        return name

    def call(self, target: str, args: tuple[Template, ...], shape: tuple[int, ...], *, dtype: str) -> Expr:
        """The one result of a torch operator, as a call of its own; equal ones are one."""
        for same in self.more:
            if (same.target, same.args) == (target, args):
                return Expr(self, self.nodes[same.results[0]])
        number = len(self.more)
        while (name := f"{self.origin}_{number}") in self.nodes or name in self._index.calls:
            number += 1
        self.more.append(Call(name=name, target=target, args=args, results=(name,)))
        return self.add(Node(name=name, op="call", shape=shape, dtype=dtype, origin=name))

    def einsum(self, left: tuple[Expr, str], right: tuple[Expr, str], result: str, dtype: str) -> Expr:
        """The product of two factors with their letters, in this dtype."""
        factors = tuple(Ref(name=x.to(dtype).node.name) for x, _ in (left, right))
        sizes = dict((*zip(left[1], left[0].shape, strict=True), *zip(right[1], right[0].shape, strict=True)))
        said = f"{left[1]},{right[1]}->{result}"
        shape = tuple(sizes[c] for c in result)
        return self.call(_EINSUM, (said, Struct(kind="list", items=factors)), shape, dtype=dtype)

    def convolution(
        self, x: Expr, weight: Expr, sides: Sequence[Side], *, groups: int, transposed: bool
    ) -> Expr:  # fmt: skip
        """The convolution of (N, C, spatial) over these sides, with a weight as torch has it; as many results as the
        sides say."""
        rank, dtype = len(sides), x.dtype
        extra = [0 if transposed else side.extra for side in sides]
        padding = _numbers(s.padding + e * s.stride for s, e in zip(sides, extra, strict=True))
        stride, dilation = (_numbers(n) for n in ((s.stride for s in sides), (s.dilation for s in sides)))
        given = (Ref(name=x.node.name), Ref(name=weight.to(dtype).node.name), None, stride, padding)
        if transposed:
            args = (*given, _numbers(s.output_padding for s in sides), groups, dilation)
            shape = (x.shape[0], weight.shape[1] * groups, *(s.out for s in sides))
            target = f"aten.conv_transpose{rank}d.{'default' if rank == 1 else 'input'}"
            return self.call(target, args, shape, dtype=dtype)
        shape = (x.shape[0], weight.shape[0], *(s.results for s in sides))
        made = self.call(f"aten.conv{rank}d.default", (*given, dilation, groups), shape, dtype=dtype)
        for d, (side, more) in enumerate(zip(sides, extra, strict=True)):
            if side.results != side.out:
                made = made.slice(2 + d, more, side.out)
        return made

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
            changed += (*self.more, _spelt(call)) if call.name == node.origin else (call,)
        after = pruned(replace(graph, nodes=tuple(nodes), calls=tuple(changed), free=()))
        # A call that no result is left of is for its nodes' sake alone, and needs no longer what it read.
        spelt = tuple(call if any(call.results) or call.ordered else _spelt(call) for call in after.calls)
        return after if spelt == after.calls else pruned(replace(after, calls=spelt))


def _spelt(call: Call) -> Call:
    """A call that its nodes say all of."""
    return replace(call, target=f"{TRACED}{call.label}", args=(), kwargs=())


def _numbers(values: Iterable[int]) -> Struct:
    return Struct(kind="list", items=tuple(values))
