"""Writing a backward Graph: the Builder of lowerings, with names, casts and calls of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.access import Position
from tilewright.ir.graph import Call, Node, Ref, Struct

from ..lowering.lower import Builder, Expr, Number, wide


class Tape(Builder):
    """Its nodes have names that begin with `prefix`. `calls` are those that torch could run itself, by name."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.calls: dict[str, Call] = {}
        self._prefix = prefix

    def fresh(self) -> str:
        return f"{self._prefix}{len(self.nodes)}"

    def point(self, op: str, *args: Expr | Number, dtype: str | None = None) -> Expr:
        """As a Builder's; a value that was made wider, and is cast back, is the value."""
        if op == "to" and isinstance(args[0], Expr) and args[0].node.op == "to":
            before = self.nodes[args[0].node.sources[0]]
            if before.dtype == dtype and wide(dtype) == args[0].dtype:
                return Expr(self, before)
        return super().point(op, *args, dtype=dtype)

    def contract(self, equation: str, left: Expr, right: Expr, *, shape: Sequence[int]) -> Expr:
        """An einsum of two values of one dtype, as a call."""
        name = self.fresh()
        pair = Struct(kind="list", items=(Ref(name=left.node.name), Ref(name=right.node.name)))
        call = Call(name=f"{name}_einsum", target="aten.einsum.default", args=(equation, pair), results=(name,))
        self.calls[call.name] = call
        return self.add(Node(name=name, op="call", shape=tuple(shape), dtype=left.dtype, origin=call.name))

    def called(self, call: Call, *, like: Node, item: int = 0) -> Expr:
        """The one result of a call that is used, laid out as another value."""
        self.calls[call.name] = call
        return self.add(
            Node(name=call.results[item], op="call", shape=like.shape, dtype=like.dtype, origin=call.name,
                 item=item, order=like.order)
        )  # fmt: skip

    def sources(self, name: str) -> tuple[str, ...]:
        """What this node reads."""
        node = self.nodes[name]
        return self.calls[node.origin].sources if node.op == "call" else node.sources


def summed_to(shape: Sequence[int], g: Expr, among: Sequence[int]) -> Expr:
    """The sum over what a value of this shape was broadcast along to the shape `among`; this may have size 1 where it
    is the same all along, and so may the gradient `g`."""
    sizes = (1,) * (len(among) - len(g.shape)) + g.shape
    target = (1,) * (len(among) - len(shape)) + tuple(shape)
    over = [d for d, n in enumerate(among) if target[d] == 1 and n > 1]
    alike = prod(among[d] for d in over if sizes[d] == 1)
    varying = [d for d in over if sizes[d] > 1]
    whole = g.reshape(sizes)
    total = whole.reduce("sum", varying) if varying else whole
    rest = [1 if d in over else n for d, n in enumerate(sizes)]
    total = total.reshape(rest[len(among) - len(shape) :])
    return total if alike == 1 else total * float(alike)


def padded(g: Expr, dim: int, start: int, size: int) -> Expr:
    """A value from `start` on along a dimension of `size`, and zeros elsewhere."""
    shape = (*g.shape[:dim], size, *g.shape[dim + 1 :])
    at = [Position(start=-start if d == dim else 0, steps=((d, 1),)) for d in range(len(shape))]
    return g.builder.load(g, shape, at, 0)
