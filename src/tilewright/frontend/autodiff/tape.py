"""Writing a backward Graph: a Tape that appends nodes, and values over them that read like formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.graph import Call, Node, Ref, Struct
from tilewright.ir.program import Position

FLOATS = ("f16", "bf16", "f32", "f64")
_TRUTHS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_not", "logical_and", "logical_or",
                     "logical_xor"})  # fmt: skip

Number = float | int | bool


def wide(dtype: str) -> str:
    """In which gradients of values of this dtype are computed."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape of all these together; they are known to agree."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))


@dataclass(frozen=True, slots=True)
class Value:
    """A node of a backward graph. Operators and `do` append nodes; both sides of an operator have one dtype."""

    tape: Tape
    node: Node

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape

    @property
    def dtype(self) -> str:
        return self.node.dtype

    def do(self, op: str, *others: Value | Number) -> Value:
        return self.tape.point(op, self, *others)

    def __add__(self, other: Value | Number) -> Value:
        return self.do("add", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self.do("sub", other)

    def __rsub__(self, other: Number) -> Value:
        return self.tape.point("sub", other, self)

    def __mul__(self, other: Value | Number) -> Value:
        return self.do("mul", other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.do("div", other)

    def __neg__(self) -> Value:
        return self.do("neg")

    def where(self, yes: Value | Number, no: Value | Number) -> Value:
        """`yes` where this (bool) holds, else `no`."""
        return self.do("where", yes, no)

    def to(self, dtype: str) -> Value:
        if dtype == self.dtype:
            return self
        before = self.tape.nodes[self.node.sources[0]] if self.node.op == "to" else None
        if before is not None and before.dtype == dtype and wide(dtype) == self.dtype:  # made wider, and back
            return Value(self.tape, before)
        return self.tape.add(self._like("to", self.shape, dtype=dtype))

    def reshape(self, shape: Sequence[int]) -> Value:
        return self if self.shape == tuple(shape) else self.tape.add(self._like("reshape", shape))

    def permute(self, order: Sequence[int]) -> Value:
        return self.tape.add(self._like("permute", [self.shape[d] for d in order], dims=tuple(order)))

    def slice(self, dim: int, start: int, length: int) -> Value:
        shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
        return self.tape.add(self._like("slice", shape, dims=(dim, start, length)))

    def expand(self, shape: Sequence[int]) -> Value:
        ours = self.reshape((1,) * (len(shape) - len(self.shape)) + self.shape)
        return ours if ours.shape == tuple(shape) else self.tape.add(ours._like("expand", shape))

    def sum(self, dims: Sequence[int]) -> Value:
        """Over these dimensions, which vanish."""
        rest = [n for d, n in enumerate(self.shape) if d not in dims]
        return self.tape.add(self._like("sum", rest, dims=tuple(dims))) if dims else self

    def sum_to(self, shape: Sequence[int], among: Sequence[int]) -> Value:
        """Over what a value of this shape was broadcast along to the shape `among`; this may have size 1 where it is
        the same all along, and so may what is given."""
        sizes = (1,) * (len(among) - len(self.shape)) + self.shape
        target = (1,) * (len(among) - len(shape)) + tuple(shape)
        over = [d for d, n in enumerate(among) if target[d] == 1 and n > 1]
        alike = prod(among[d] for d in over if sizes[d] == 1)
        kept = self.reshape(sizes).sum([d for d in over if sizes[d] > 1])
        rest = [1 if d in over else n for d, n in enumerate(sizes)]
        total = kept.reshape(rest[len(among) - len(shape) :])
        return total if alike == 1 else total * float(alike)

    def scan(self, dim: int, *, reverse: bool, exclusive: bool) -> Value:
        made = self._like("cumsum", self.shape, dims=(dim,))
        return self.tape.add(replace(made, args=(self.name, reverse, exclusive)))

    def padded(self, dim: int, start: int, size: int) -> Value:
        """This from `start` on along a dimension of `size`, and zeros elsewhere."""
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        at = tuple(Position(start=-start if d == dim else 0, steps=((d, 1),)) for d in range(len(shape)))
        return self.tape.add(replace(self._like("load", shape), args=(self.name, 0), at=at))

    def _like(self, op: str, shape: Sequence[int], *, dtype: str = "", dims: tuple[int, ...] = ()) -> Node:
        return Node(name="", op=op, shape=tuple(shape), dtype=dtype or self.dtype, args=(self.name,), dims=dims)


class Tape:
    """Appends nodes under names that begin with `prefix`; equal nodes are one. `origin` is the call that nodes are made
    for; `calls` are those that torch could run itself, by name."""

    def __init__(self, prefix: str) -> None:
        self.nodes: dict[str, Node] = {}
        self.calls: dict[str, Call] = {}
        self.origin = ""
        self._prefix = prefix
        self._same: dict[Node, Value] = {}

    def given(self, node: Node) -> Value:
        """A node under its own name."""
        self.nodes[node.name] = node
        return Value(self, node)

    def add(self, node: Node) -> Value:
        key = replace(node, name="", origin="")
        if key not in self._same:
            name = f"{self._prefix}{len(self.nodes)}"
            self._same[key] = self.given(replace(node, name=name, origin=self.origin))
        return self._same[key]

    def point(self, op: str, *args: Value | Number) -> Value:
        values = [a for a in args if isinstance(a, Value)]
        dtype = "bool" if op in _TRUTHS else values[-1].dtype if op != "where" else _chosen(args)
        shape = broadcast(*(v.shape for v in values))
        plain = tuple(a.name if isinstance(a, Value) else a for a in args)
        return self.add(Node(name="", op=op, shape=shape, dtype=dtype, args=plain))

    def contract(self, equation: str, left: Value, right: Value, *, shape: Sequence[int]) -> Value:
        """An einsum of two values of one dtype, as a call."""
        name = f"{self._prefix}{len(self.nodes)}"
        pair = Struct(kind="list", items=(Ref(name=left.name), Ref(name=right.name)))
        call = Call(name=f"{name}_einsum", target="aten.einsum.default", args=(equation, pair), results=(name,))
        self.calls[call.name] = call
        return self.given(Node(name=name, op="call", shape=tuple(shape), dtype=left.dtype, origin=call.name))

    def sources(self, name: str) -> tuple[str, ...]:
        """What this node reads."""
        node = self.nodes[name]
        return self.calls[node.origin].sources if node.op == "call" else node.sources

    def index(self, size: int) -> Value:
        """The positions 0..size-1."""
        return self.add(Node(name="", op="index", shape=(size,), dtype="i64", dims=(0,)))

    def copied(self, node: Node, names: Mapping[str, str]) -> Value:
        """A node of the forward graph over other nodes."""
        return self.add(node.renamed(names))


def _chosen(args: Sequence[Value | Number]) -> str:
    return next((a.dtype for a in args[1:] if isinstance(a, Value)), "f32")
