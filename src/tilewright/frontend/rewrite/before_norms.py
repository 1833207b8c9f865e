"""What is added ahead of a norm that takes it off again: the bias of a convolution before a batch norm in training.

Where statistics are taken over dimensions along which a value b is the same, the mean of u + b is the mean of u, + b;
so u + b less its mean is u less its own, and the deviation is u's. Whoever else reads the mean (running statistics)
gets the mean of u, + b. In exact numbers nothing changes. Done where b is a convolution's bias, which torch adds in a
pass of its own; what else is added on the way goes with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.convolution import ConvolutionCall, convolved
from tilewright.ir.graph import VIEWS, Graph, Node

from ..lowering.form import Stuck, aligned
from ..lowering.lower import FLOATS, Builder, Expr, NotLowered, Number
from .draft import Draft
from .readers import Readers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Norm:
    """The mean of a value, and the differences of the two."""

    mean: Node
    value: Node
    differences: tuple[Node, ...]


def without_bias(graph: Graph, least_flops: int) -> tuple[Graph, str, int] | None:
    """The graph with one convolution of at least so many flops without its bias, and what was done; None where there is
    none."""
    index = Readers(graph)
    for mean in graph.nodes:
        norm = _norm(index, mean) if mean.op == "moments" and mean.item == 0 else None
        if norm is None:
            continue
        try:
            made = _made(index, norm, least_flops)
        except (Stuck, NotLowered):
            continue
        if made is not None:
            return made
    return None


def _norm(index: Readers, mean: Node) -> _Norm | None:
    """The norm with this mean, where nothing else reads the value."""
    value = index.nodes[mean.sources[0]]
    if index.kept(value.name):
        return None
    differences: list[Node] = []
    for reader in (index.nodes[name] for name in index.readers[value.name]):
        other = reader.args[1] if reader.op == "sub" and reader.args[0] == value.name else None
        if isinstance(other, str) and index.viewed(other) == mean:
            differences.append(reader)
        elif reader.op != "moments" or reader.dims != mean.dims:
            return None
    return _Norm(mean=mean, value=value, differences=tuple(differences))


def _made(index: Readers, norm: _Norm, least_flops: int) -> tuple[Graph, str, int] | None:
    """The graph with the norm's value without what was added, and a mean with it for other readers."""
    whole, path = _path(index, norm.value)
    if whole is None or whole.bias is None or whole.flops < least_flops:
        return None
    graph = index.graph
    if index.kept(norm.mean.name) or set(index.readers[norm.mean.name]) - _views_for(index, norm):
        graph = _apart(index, norm, _Way(whole, path, norm.mean.dims))
    draft = Draft(Readers(graph))
    draft.origin = f"{norm.value.origin}_unbiased"
    call = index.calls[whole.node.origin]
    args = tuple(None if i == 2 else a for i, a in enumerate(call.args))
    value = draft.call(call.target, args, whole.node.shape, dtype=whole.node.dtype)
    value = draft.add(replace(value.node, order=whole.node.order))
    graph = draft.replaced(norm.value, _Way(whole, path, norm.mean.dims).unbiased(value))
    return graph, f"{call.label}: no bias, which a norm takes off", 0


def _apart(index: Readers, norm: _Norm, way: _Way) -> Graph:
    """The graph with differences from a mean of their own, and in the other's place that one, plus what is to go."""
    draft = Draft(index)
    draft.origin = f"{norm.mean.origin}_unbiased"
    own = draft.pure(replace(norm.mean, name="", origin=""))
    shift = way.shift(draft)
    added = shift.reshape(tuple(size for d, size in enumerate(shift.shape) if d not in norm.mean.dims))
    graph = draft.replaced(norm.mean, (own + added).to(norm.mean.dtype))
    for difference in norm.differences:
        draft = Draft(Readers(graph))
        draft.origin = f"{norm.mean.origin}_unbiased"
        mean, value = (Expr(draft, draft.nodes[name]) for name in (own.node.name, norm.value.name))
        shape = draft.nodes[str(difference.args[1])].shape
        graph = draft.replaced(difference, value - mean.reshape(shape))
    return graph


def _views_for(index: Readers, norm: _Norm) -> set[str]:
    """The readers of the mean through which nothing but the differences sees it."""

    def alone(name: str) -> bool:
        readers = index.readers[name]
        return bool(readers) and all(
            index.nodes[r] in norm.differences or (index.nodes[r].op in VIEWS and alone(r)) for r in readers
        )

    return {n for n in index.readers[norm.mean.name] if index.nodes[n] in norm.differences or alone(n)}


def _path(index: Readers, value: Node) -> tuple[ConvolutionCall | None, list[Node]]:
    """The convolution of which this is a linear image, and the operators between, which alone read one another."""
    path: list[Node] = []
    node = value
    while node.op != "call":
        if node.op == "to" and node.dtype in FLOATS:
            source = node.sources[0]
        elif node.op in ("mul", "div", "add", "sub"):
            found = [a for a in node.args if isinstance(a, str) and index.nodes[a].shape == node.shape]
            if len(found) != 1 or (node.op == "div" and node.args[0] != found[0]):
                return None, path
            source = found[0]
        else:
            return None, path
        if not index.alone(source):
            return None, path
        path.append(node)
        node = index.nodes[source]
    return convolved(index.calls[node.origin], index.nodes), path[::-1]


@dataclass(frozen=True, slots=True)
class _Way:
    """From a convolution to a norm, which takes its mean over `dims`."""

    whole: ConvolutionCall
    path: Sequence[Node]
    dims: Sequence[int]

    def unbiased(self, value: Expr) -> Expr:
        """The norm's value, from the convolution without a bias, less what is added on the way."""
        for node, mine, other in self._others(value.builder):
            if node.op in ("mul", "div"):
                value = value.do(node.op, other)
            elif node.op == "sub" and mine:
                value = -value
            value = value.to(node.dtype)
        return value

    def shift(self, builder: Builder) -> Expr:
        """What the norm's value has beyond that."""
        assert self.whole.bias is not None
        bias = Expr(builder, self.whole.bias).wide()
        total = bias.reshape((1, bias.shape[0], *(1 for _ in self.whole.out)))
        for node, mine, other in self._others(builder):
            if node.op in ("mul", "div", "add"):
                total = total.do(node.op, other)
            elif node.op == "sub":
                total = other - total if mine else total - other
        return total

    def _others(self, builder: Builder) -> Iterator[tuple[Node, int, Expr | Number]]:
        """Each operator, which of its arguments comes from the convolution, and the other one."""
        at = self.whole.node.name
        for node in self.path:
            mine, given = node.args.index(at), node.args[1 - node.args.index(at)] if len(node.args) > 1 else 0
            at = node.name
            if not isinstance(given, str):
                yield node, mine, given
                continue
            other = aligned(builder, builder.nodes[given], node.shape).wide()
            if other.dtype not in FLOATS or any(other.shape[d] > 1 for d in self.dims):
                raise Stuck
            yield node, mine, other
