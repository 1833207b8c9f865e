"""A softmax over scores and one column more, a sink, that is then cut off: the weights of the scores, with the sink in
their sums and in no tensor. Attention with sinks is written so: cat, softmax, slice.

    largest = maximum(max(scores), sink)
    weights = exp(scores - largest) / (sum(exp(scores - largest)) + exp(sink - largest))
"""

from __future__ import annotations

from collections.abc import Sequence

from .lower import Builder, Expr


def join(b: Builder, result: Expr, tensors: Sequence[Expr], dim: int) -> None:
    """Remember of what a value was joined, if that may have been scores and a sink."""
    if len(tensors) == 2 and tensors[1].shape[dim] == 1 < tensors[0].shape[dim]:
        b.joined[result.node.name] = (tensors[0], tensors[1], dim)


def normalise(b: Builder, result: Expr, x: Expr, dim: int) -> None:
    """Remember of a softmax that what it normalises was joined, with the largest subtracted perhaps."""
    node = x.node
    if node.op == "sub" and isinstance(node.args[1], str):
        largest = b.nodes[node.args[1]]
        largest = b.nodes[largest.sources[0]] if largest.op == "reshape" else largest
        if (largest.op, largest.args, largest.dims) == ("max", node.args[:1], (dim,)):
            node = b.nodes[node.sources[0]]
    found = b.joined.get(node.name)
    if found is not None and found[2] == dim:
        b.normalised[result.node.name] = found


def cut(x: Expr, part: tuple[int, int, int]) -> Expr | None:
    """A part (dimension, start, length) of a softmax, if it is all but the sink; None of anything else."""
    b = x.builder
    source = x.node.sources[0] if x.node.op == "to" else x.node.name
    found = b.normalised.get(source)
    if found is None or part != (found[2], 0, found[0].shape[found[2]]):
        return None
    dim, wide = part[0], b.nodes[source].dtype
    scores, sink = (t.to(wide) for t in found[:2])
    largest = scores.reduce("max", (dim,), keepdim=True).do("maximum", sink)
    power = (scores - largest).do("exp")
    total = power.reduce("sum", (dim,), keepdim=True) + (sink - largest).do("exp")
    return (power / total).to(x.dtype)
