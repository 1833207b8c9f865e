"""Values of the forward pass as the backward pass has them: computed again from inputs, or saved.

Results of products, reductions and scans are saved, since they are small, or dear; which of them, the derivative
itself says by asking for them.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.contraction import contracted
from tilewright.ir.graph import VIEWS, Graph, Node
from tilewright.ir.program import REDUCTIONS, SCANS

from ..lowering.lower import Expr
from .attended import Softmax
from .tape import Tape

# What gives the same bits wherever it is computed again, if its arguments have them.
_EXACT = frozenset(
    {*VIEWS, "slice", "to", "neg", "abs", "maximum", "minimum", "where", "gt", "ge", "lt", "le", "eq", "ne"}
)


class Again:
    """Values of `forward` on a tape. `saved`: those that the forward pass keeps; `made`: nodes that it must have
    besides, to save them. Of an attention, `product` is computed again, and the weights are, from what is saved of
    the `softmax`."""

    def __init__(self, forward: Graph, tape: Tape, *, product: str = "", softmax: Softmax | None = None) -> None:
        self.forward, self.tape = forward, tape
        self.nodes = {n.name: n for n in forward.nodes}
        self.saved: dict[str, None] = {}
        self.made: dict[str, Node] = {}
        self.calls = {c.name: c for c in forward.calls}
        self.softmax = softmax
        self._kept = _kept_results(forward, self.nodes) - {product}
        self._values: dict[str, Expr] = {}

    def value(self, name: str) -> Expr:
        """A forward value, in its own dtype."""
        todo = [name]
        while todo:
            node = self.nodes[todo[-1]]
            missing = [s for s in self._read(node) if s not in self._values]
            todo += missing
            if not missing:
                self._values.setdefault(node.name, self._computed(node))
                todo.pop()
        return self._values[name]

    def wide(self, name: str) -> Expr:
        """The same in the dtype in which gradients are computed."""
        return self.value(name).wide()

    def _read(self, node: Node) -> tuple[str, ...]:
        if node.name in self._kept or node.op == "input":
            return ()
        if self.softmax is not None and node.name == self.softmax.weights:
            return self.softmax.score, self.softmax.logsum
        return self.calls[node.origin].sources if node.op == "call" else node.sources

    def _computed(self, node: Node) -> Expr:
        if node.name in self._kept:
            self.saved[node.name] = None
            return self.tape.add(Node(name=node.name, op="input", shape=node.shape, dtype=node.dtype, order=node.order))
        if node.op == "input":
            return self.tape.add(node)
        if node.op == "call":
            return _multiplied(self, node)
        if self.softmax is not None and node.name == self.softmax.weights:
            return _weights(self, node, self.softmax)
        return self.tape.pure(node.renamed({s: self._values[s].node.name for s in node.sources}))

    def other_result(self, node: Node, item: int) -> Expr:
        """The other result of a reduction."""
        return self._beside(replace(node, name=f"{node.name}_twin", item=item))

    def place(self, node: Node) -> Expr:
        """The position of an extremum along its dimension."""
        return self._beside(replace(node, name=f"{node.name}_place", op=f"arg{node.op}", dtype="i64"))

    def _beside(self, wanted: Node) -> Expr:
        """The value of the forward node that computes this; of a new one where there is none."""
        key = wanted.op, wanted.args, wanted.dims, wanted.item
        found = next((n for n in self.forward.nodes if (n.op, n.args, n.dims, n.item) == key), None)
        found = found or self.made.setdefault(wanted.name, wanted)
        self.keep(found)
        return self.value(found.name)

    def keep(self, node: Node) -> None:
        """Have a value saved."""
        self.nodes.setdefault(node.name, node)
        self._kept.add(node.name)
        self._values.pop(node.name, None)

    def is_exact(self, node: Node) -> bool:
        """Whether the value has the same bits as in the forward pass."""
        known = node.op == "input" or node.name in self._kept
        return known or (node.op in _EXACT and all(self.is_exact(self.nodes[s]) for s in node.sources))

    def made_by(self, name: object, op: str) -> Node | None:
        """The node of this name, if it is one of this operation."""
        node = self.nodes.get(name) if isinstance(name, str) else None
        return node if node is not None and node.op == op else None


def _multiplied(again: Again, node: Node) -> Expr:
    found = contracted(again.calls[node.origin], again.nodes)
    assert found is not None
    letters, (left, right) = found.letters, (again.value(x.name) for x in (found.left, found.right))
    equation = f"{letters.left},{letters.right}->{letters.result}"
    made = again.tape.contract(equation, left, right, shape=node.shape)
    return made if found.alpha == 1 else made * found.alpha


def _weights(again: Again, node: Node, softmax: Softmax) -> Expr:
    logsum = again.value(softmax.logsum).reshape(_one_along(node.shape, softmax.dim))
    return (again.wide(softmax.score) - logsum).do("exp").to(node.dtype)


def _one_along(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], 1, *shape[dim + 1 :])


def _kept_results(forward: Graph, nodes: dict[str, Node]) -> set[str]:
    """What is not computed again: products, reductions and scans, and outputs in whose place more would have to be
    read."""
    roots: dict[str, frozenset[str]] = {}
    kept = {n.name for n in forward.nodes if n.op == "call" or n.op in REDUCTIONS or n.op in SCANS}
    for node in forward.nodes:
        again = not node.sources or node.name in kept
        found = frozenset([node.name]) if again else frozenset().union(*(roots[s] for s in node.sources))
        size = sum(nodes[name].bytes for name in found)
        if node.op not in ("input", *VIEWS) and node.name in forward.outputs and size > node.bytes * 3 // 2:
            kept.add(node.name)
            found = frozenset([node.name])
        roots[node.name] = found
    return kept
