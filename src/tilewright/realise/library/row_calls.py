"""What is done to rows, along the last dimension, that libraries have kernels for: normalisations, softmax, cross
entropy, and an activation times a gate; as torch's own operators, RMS normalisation also as modules write it out:

    weight * (x * rsqrt(mean(x^2) + eps)), in fp32 up to the weight in 16-bit modules
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.facts.regions import region_of
from tilewright.ir.graph import Call, Graph, Node, Ref, Struct, Template

from .flow import ValueFlow
from .protocol import LibraryMatch

FLOATS = ("f16", "bf16", "f32")
_EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23}  # of torch's rms_norm, where none is given
_REDUCTIONS = ("none", "mean", "sum")
_GATED = {"silu": "swiglu", "gelu": "geglu"}
_COPY = "to_copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCall(LibraryMatch):
    """One of them. `kind`: "rms_norm", "layer_norm", "softmax", "cross_entropy", "swiglu" (silu(x) * y) or "geglu" (the
    same with GELU by tanh). `parameters` are the names of the region's inputs, in order: "x", "weight", "bias", "y",
    "target"; all are row-major."""

    kind: str
    parameters: tuple[str, ...]
    dtype: str
    width: int  # of a row
    weights: str = ""  # dtype of the weight, and of the bias; "" without
    eps: float = 0.0
    reduction: str = ""  # of a cross entropy: "none", "mean" or "sum"
    ignored: int = -100  # its target that counts nothing

    @property
    def called(self) -> str:
        """As a sentence names it."""
        return self.kind.replace("_", " ")


def row_calls(graph: Graph, kinds: Collection[str]) -> tuple[RowCall, ...]:
    """Every one of these kinds."""
    rows = _Rows(graph)
    ways = (rows.rms_norm, rows.written_rms_norm, rows.layer_norm, rows.softmax, rows.cross_entropy, rows.gated)
    found = (one for call in graph.calls if len(call.results) == 1 for way in ways for one in way(call))
    return tuple(one for one in found if one.kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """The tensors of a row call."""

    x: Node
    weight: Node | None = None
    bias: Node | None = None
    y: Node | None = None
    target: Node | None = None

    @property
    def names(self) -> dict[str, str]:
        named = {"x": self.x, "weight": self.weight, "bias": self.bias, "y": self.y, "target": self.target}
        return {node.name: name for name, node in named.items() if node is not None}


class _Rows(ValueFlow):
    def rms_norm(self, call: Call) -> Iterator[RowCall]:
        if call.label != "rms_norm":
            return
        x, shape, weight, eps = _filled(call.args, 4)
        node = self.node(x)
        if node is not None and isinstance(shape, Struct) and len(shape.items) == 1:
            given = _Given(x=node, weight=self.node(weight))
            default = _EPS.get(node.dtype, 0.0)
            yield from self._made(
                "rms_norm", {call.name}, given, eps=float(eps) if isinstance(eps, int | float) else default
            )

    def written_rms_norm(self, call: Call) -> Iterator[RowCall]:
        """From the reciprocal root on: back to what is normalised, and on to where the weight is multiplied with it."""
        total = self.maker(call.args[0], "add") if call.label == "rsqrt" else None
        scaled = self.only_reader(call) if total is not None else None
        if total is None or scaled is None or scaled.label != "mul":
            return
        mean, eps = self.maker(total.args[0], "mean"), total.args[1]
        square = self.maker(mean.args[0], "pow") if mean is not None else None
        if mean is None or square is None or square.args[1:] != (2,) or not isinstance(eps, float):
            return
        x, *others = (a for a in scaled.args if a != Ref(name=call.results[0]))
        root = self.node(x)
        if others or root is None or square.args[0] != x or not _last(mean.args[1:], len(root.shape)):
            return
        calls = {call.name, total.name, mean.name, square.name, scaled.name}
        last = self.only_reader(scaled)
        before, after = self.maker(x, _COPY), last if last is not None and last.label == _COPY else None
        if before is not None and after is not None:
            calls |= {before.name, after.name}
            root, last = self.node(before.args[0]), self.only_reader(after)
        if root is None or last is None or last.label != "mul":
            return
        weights = [self.node(a) for a in last.args if self.node(a) is not None and self.node(a) != root]
        found = [w for w in weights if w is not None and len(w.shape) == 1 and w.name not in self.makers]
        if len(found) == 1:
            given = _Given(x=root, weight=found[0])
            yield from self._made("rms_norm", calls | {last.name}, given, eps=eps)

    def layer_norm(self, call: Call) -> Iterator[RowCall]:
        if call.label != "layer_norm":
            return
        x, shape, weight, bias, eps = _filled(call.args, 5)
        node = self.node(x)
        if node is not None and isinstance(shape, Struct) and len(shape.items) == 1:
            given = _Given(x=node, weight=self.node(weight), bias=self.node(bias))
            eps = float(eps) if isinstance(eps, int | float) else 1e-5
            yield from self._made("layer_norm", {call.name}, given, eps=eps)

    def softmax(self, call: Call) -> Iterator[RowCall]:
        node = self.node(call.args[0]) if call.label == "softmax" else None
        if node is not None and len(call.args) == 2 and call.args[1] in (-1, len(node.shape) - 1):
            yield from self._made("softmax", {call.name}, _Given(x=node))

    def cross_entropy(self, call: Call) -> Iterator[RowCall]:
        if call.label != "cross_entropy_loss":
            return
        logits, target, weight, reduction, ignored, smoothing = _filled(call.args, 6)
        x, classes = self.node(logits), self.node(target)
        if x is None or classes is None or weight is not None or smoothing or call.kwargs:
            return
        if len(x.shape) == 2 and len(classes.shape) == 1 and classes.dtype in ("i32", "i64"):
            yield from self._made(
                "cross_entropy", {call.name}, _Given(x=x, target=classes),
                reduction=_REDUCTIONS[reduction if isinstance(reduction, int) else 1],
                ignored=ignored if isinstance(ignored, int) else -100,
            )  # fmt: skip

    def gated(self, call: Call) -> Iterator[RowCall]:
        if call.label != "mul" or len(call.args) != 2:
            return
        for first, second in (call.args, call.args[::-1]):
            made = self.makers.get(first.name) if isinstance(first, Ref) else None
            if made is None or made.label not in _GATED or self.only_reader(made) is not call:
                continue
            tanh = dict(made.kwargs).get("approximate") == "tanh"
            x, y = self.node(made.args[0]), self.node(second)
            if (made.label == "gelu") == tanh and x is not None and y is not None and x.shape == y.shape and x != y:
                yield from self._made(_GATED[made.label], {made.name, call.name}, _Given(x=x, y=y))
                return

    def _made(self, kind: str, calls: set[str], given: _Given, **how: Any) -> Iterator[RowCall]:
        """The row call that these operators are, unless something else of them is needed, or tensors lie otherwise."""
        try:
            region = region_of(self.graph, frozenset(calls))
        except ValueError:
            return
        names, nodes = given.names, [self.nodes[n] for n in given.names]
        weights = {w.dtype for w in (given.weight, given.bias) if w is not None}
        if set(region.inputs) != set(names) or len(region.outputs) != 1 or len(weights) > 1 or not given.x.shape:
            return
        made = self.nodes[region.outputs[0]]
        plain = made.dtype == given.x.dtype and given.x.dtype in FLOATS and not any(n.order for n in (*nodes, made))
        if plain and (given.y is None or given.y.dtype == given.x.dtype):
            yield RowCall(
                region, kind.replace("_", " "), kind=kind, parameters=tuple(names[n] for n in region.inputs),
                dtype=given.x.dtype, width=given.x.shape[-1], weights=next(iter(weights), ""), **how,
            )  # fmt: skip


def _filled(args: tuple[Template, ...], count: int) -> tuple[Template, ...]:
    return (*args, *[None] * (count - len(args)))[:count]


def _last(args: tuple[Template, ...], rank: int) -> bool:
    """Whether a mean is over the last dimension, which stays as one of length 1."""
    over, kept = _filled(args, 2)
    return isinstance(over, Struct) and over.items in ((-1,), (rank - 1,)) and kept is True
