"""Writing a Graph: a Builder that appends nodes, and expressions over them that read like formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import torch

from tilewright.ir.access import Position
from tilewright.ir.graph import Node
from tilewright.ir.program import DTYPE_BYTES

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
    torch.float8_e4m3fn: "float8_e4m3fn",
}  # fmt: skip
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
_E4M3_MOST = 464.0  # halfway between 448, the largest number, and what would come next
FLOATS = ("f16", "bf16", "f32", "f64")
_TRUTHS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_not", "logical_and", "logical_or",
                     "logical_xor"})  # fmt: skip

Number = float | int | bool


def dtype_name(dtype: torch.dtype) -> str:
    """The name of facts.program, or torch's own for a dtype outside of it."""
    return DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def memory_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Node.order of a tensor: its dimensions by their strides; empty where that is row-major, or where some repeat."""
    wide = [d for d, size in enumerate(tensor.shape) if size != 1]
    strides = tensor.stride()
    by_stride = sorted(wide, key=strides.__getitem__, reverse=True)
    if by_stride == wide or any(strides[d] == 0 for d in wide):
        return ()
    return (*(d for d in range(tensor.ndim) if d not in wide), *by_stride)


def promoted(*dtypes: str) -> str:
    """torch's promotion among tensors with dimensions."""
    result = TORCH_DTYPES[dtypes[0]]
    for name in dtypes[1:]:
        result = torch.promote_types(result, TORCH_DTYPES[name])
    return DTYPES[result]


@cache
def _e4m3_saturates() -> bool:
    """Whether this torch gives the largest number for what is too large (2.13), or NaN (2.11)."""
    return not bool(torch.tensor(1e4).to(torch.float8_e4m3fn).float().isnan())


class NotLowered(Exception):
    """This call, with these arguments, has no spelling in the vocabulary; it is left to torch."""


def wide(dtype: str) -> str:
    """In which torch computes inside a composite operator, and gradients: fp32 for half, itself otherwise."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def _operator(op: str) -> Callable[[Expr, Expr | Number], Expr]:
    return lambda x, other: x.do(op, other)


def _taken_from(x: Expr, other: Number) -> Expr:
    return x.builder.point("sub", other, x)


def _negated(x: Expr) -> Expr:
    return x.do("neg")


@dataclass(frozen=True, slots=True)
class Expr:
    """A node under construction. Operators and `do` append pointwise nodes; tensor arguments are promoted."""

    builder: Builder
    node: Node

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape

    @property
    def dtype(self) -> str:
        return self.node.dtype

    @property
    def literal(self) -> Number | None:
        """The number that all elements equal, where that is known while tracing."""
        return self.builder.uniform.get(self.node.name)

    def do(self, op: str, *others: Expr | Number, dtype: str | None = None) -> Expr:
        return self.builder.point(op, self, *others, dtype=dtype)

    def to(self, dtype: str) -> Expr:
        if dtype == self.dtype:
            return self
        given = self
        if dtype == "float8_e4m3fn" and not _e4m3_saturates():
            given = self.to("f32") if self.dtype not in FLOATS else self
            given = (given.do("abs") > _E4M3_MOST).where(math.nan, given)
        return self.builder.point("to", given, dtype=dtype)

    def wide(self) -> Expr:
        return self.to(wide(self.dtype))

    __add__ = __radd__ = _operator("add")
    __mul__ = __rmul__ = _operator("mul")
    __sub__, __rsub__, __neg__, __truediv__ = _operator("sub"), _taken_from, _negated, _operator("div")
    __lt__, __le__, __gt__, __ge__ = _operator("lt"), _operator("le"), _operator("gt"), _operator("ge")

    def where(self, yes: Expr | Number, no: Expr | Number) -> Expr:
        """`yes` where this (bool) holds, else `no`."""
        return self.do("where", yes, no)

    def reduce(self, op: str, dims: Sequence[int] | None, *, keepdim: bool = False, item: int = 0) -> Expr:
        return self.builder.reduce(op, self, dims, keepdim=keepdim, item=item)

    def reshape(self, shape: Sequence[int]) -> Expr:
        return self.builder.view("reshape", self, tuple(shape))

    def expand(self, shape: Sequence[int]) -> Expr:
        return self.builder.view("expand", self, tuple(shape))

    def permute(self, order: Sequence[int]) -> Expr:
        return self.builder.view("permute", self, tuple(self.shape[d] for d in order), dims=tuple(order))

    def slice(self, dim: int, start: int, length: int) -> Expr:
        shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
        return self.builder.view("slice", self, shape, dims=(dim, start, length))


class Builder:
    """Appends nodes; equal pure nodes are one."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.uniform: dict[str, Number] = {}  # nodes all of whose elements equal this number
        self.ins: tuple[torch.Tensor, ...] = ()  # what the call that is being lowered reads
        self.outs: tuple[torch.Tensor, ...] = ()  # and what it returns, as torch describes them
        self.origin = ""
        self.instead: dict[str, Expr] = {}  # what calls after this one read instead of these nodes
        self.joined: dict[str, tuple[Expr, Expr, int]] = {}  # nodes joined of two along a dimension: see `sinks`
        self.normalised: dict[str, tuple[Expr, Expr, int]] = {}  # and the softmax of such
        self._same: dict[Node, Node] = {}
        self._count = 0

    def add(self, node: Node) -> Expr:
        """Append a node under its own name."""
        self.nodes[node.name] = node
        return Expr(self, node)

    def pure(self, node: Node) -> Expr:
        """Append a node under a name to be chosen, unless there is an equal one."""
        key = replace(node, name="", origin="")
        if key not in self._same:
            self._same[key] = self.add(replace(node, name=self.fresh(), origin=self.origin)).node
        return Expr(self, self._same[key])

    def fresh(self) -> str:
        """A name that no node has."""
        self._count += 1
        return f"{self.origin}__{self._count - 1}"

    @property
    def out_dtype(self) -> str:
        """The dtype of the first result of the call that is being lowered."""
        return dtype_name(self.outs[0].dtype)

    def point(self, op: str, *args: Expr | Number, dtype: str | None = None) -> Expr:
        """A pointwise node. Tensor arguments are cast to their common dtype, `where`'s condition aside."""
        tensors = [a for a in args if isinstance(a, Expr)]
        if any(t.dtype not in DTYPE_BYTES for t in tensors) or any(0 in t.shape for t in tensors):
            raise NotLowered
        if op != "to":
            values = tensors[1:] if op == "where" and isinstance(args[0], Expr) else tensors
            common = promoted(*(t.dtype for t in values)) if values else dtype or "f32"
            args = tuple(a.to(common) if isinstance(a, Expr) and a in values else a for a in args)
            dtype = dtype or ("bool" if op in _TRUTHS else common)
        assert dtype is not None
        shape = tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))
        plain = tuple(_plain(a) for a in args)
        if all(not isinstance(a, str) for a in plain):  # keep one tensor: somebody must carry the shape
            plain = tuple(a.node.name if isinstance(a, Expr) else a for a in args)
        result = self.pure(Node(name="", op=op, shape=shape, dtype=dtype, args=plain))
        if op == "to" and tensors[0].literal is not None:
            self.uniform[result.node.name] = torch.tensor(tensors[0].literal).to(TORCH_DTYPES[dtype]).item()
        return result

    def index(self, size: int) -> Expr:
        """The positions 0..size-1, i64."""
        return self.pure(Node(name="", op="index", shape=(size,), dtype="i64", dims=(0,)))

    def view(self, op: str, x: Expr, shape: tuple[int, ...], dims: tuple[int, ...] = ()) -> Expr:
        if shape == x.shape and (op != "permute" or dims == tuple(range(len(dims)))):
            return x
        if op == "expand" and len(shape) > len(x.shape):
            x = x.reshape((1,) * (len(shape) - len(x.shape)) + x.shape)
            if x.shape == shape:
                return x
        result = self.pure(Node(name="", op=op, shape=shape, dtype=x.dtype, args=(x.node.name,), dims=dims))
        if x.literal is not None:
            self.uniform[result.node.name] = x.literal
        return result

    def reduce(self, op: str, x: Expr, dims: Sequence[int] | None, *, keepdim: bool = False, item: int = 0) -> Expr:
        """A reduction over `dims` (None or empty: all). Dimensions of size 1 vanish by themselves."""
        if x.dtype not in DTYPE_BYTES or 0 in x.shape:
            raise NotLowered
        rank = len(x.shape)
        over = sorted({d % rank for d in dims}) if dims and rank else list(range(rank))
        kept = tuple(1 if d in over else s for d, s in enumerate(x.shape))
        shape = kept if keepdim else tuple(s for d, s in enumerate(x.shape) if d not in over)
        real = tuple(d for d in over if x.shape[d] > 1)
        dtype = "i64" if op in ("argmax", "argmin") else "bool" if op in ("any", "all") else x.dtype
        if not real:
            return _of_one(op, x, item).to(dtype).reshape(shape)
        rest = tuple(s for d, s in enumerate(x.shape) if d not in real)
        node = Node(name="", op=op, shape=rest, dtype=dtype, args=(x.node.name,), dims=real, item=item)
        return self.pure(node).reshape(shape)

    def scan(
        self, op: str, *args: Expr | Number, dim: int, reverse: bool = False, exclusive: bool = False, item: int = 0
    ) -> Expr:
        """A result of a scan of these values, broadcast, along `dim`; of one position it is what lies there."""
        tensors = [a for a in args if isinstance(a, Expr)]
        shape = tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))
        if any(t.dtype not in DTYPE_BYTES for t in tensors) or 0 in shape or (exclusive and shape[dim] == 1):
            raise NotLowered
        if shape[dim] == 1:
            return tensors[-1 if op == "recurrence" else item].expand(shape)
        plain = tuple(_plain(a) for a in args)
        dtype = "i64" if item else tensors[0].dtype
        node = Node(name="", op=op, shape=shape, dtype=dtype, args=(*plain, reverse, exclusive), dims=(dim,), item=item)
        return self.pure(node)

    def load(self, x: Expr, shape: Sequence[int], at: Sequence[Position], fill: Number | None = None) -> Expr:
        """`x` read at these positions in terms of the dimensions of `shape`; `fill` where they lie outside (None: they
        don't). A permutation of `x` becomes one of the positions."""
        if x.dtype not in DTYPE_BYTES or 0 in x.shape or 0 in shape:
            raise NotLowered
        moving = [replace(p, steps=tuple((d, s) for d, s in p.steps if s and shape[d] > 1)) for p in at]
        while x.node.op == "permute":
            moving = [moving[x.node.dims.index(d)] for d in range(len(moving))]
            x = Expr(self, self.nodes[x.node.sources[0]])
        within = all(p.surely_inside(size, shape) for p, size in zip(moving, x.shape, strict=True))
        args = (x.node.name,) if fill is None or within else (x.node.name, fill)
        return self.pure(Node(name="", op="load", shape=tuple(shape), dtype=x.dtype, args=args, at=tuple(moving)))

    def place(self, size: int, dim: int, rank: int) -> Expr:
        """The positions along dimension `dim` of `rank`, shaped to broadcast."""
        return self.index(size).reshape((size,) + (1,) * (rank - dim - 1))


def _plain(arg: Expr | Number) -> str | Number:
    if not isinstance(arg, Expr):
        return arg
    literal = arg.literal
    return arg.node.name if literal is None else literal


def _of_one(op: str, x: Expr, item: int) -> Expr:
    """A reduction of a single element."""
    if op in ("argmax", "argmin"):
        return x.builder.point("where", x.do("eq", x), 0, 0, dtype="i64")
    if op in ("moments", "softmax_stats") and item == 1:
        return x - x if op == "moments" else (x - x).do("exp")
    return x


Lowering = Callable[..., Any]  # (builder, **arguments by their schema names) -> Expr, sequence of Expr, or NotLowered


def count(x: Expr, dims: Sequence[int] | None) -> int:
    """How many elements a reduction over `dims` (None or empty: all) takes together."""
    return prod(x.shape[d] for d in dims) if dims else prod(x.shape)
