"""Attention in training: both products, and the map between them, are one Segment, in whose backward the scores are
computed again.

What is saved of a softmax is the logarithm of its sum for each row, L. With it weights are exp(score - L), and the
gradient of a score is weight * (gradient of the weight - D), where D = sum over columns of (gradient of the result *
result), one number for each row (FlashAttention, arXiv 2205.14135).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.contraction import Contracted, contracted
from tilewright.ir.graph import VIEWS, Call, Node
from tilewright.ir.program import REDUCTIONS

from ..lowering.lower import FLOATS


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNodes:
    """An attention of a graph by the names of its nodes: the `product` of query and key, its `result`, the product with
    the value, and what is computed `inside` with both. What of these is its `own` nothing else reads."""

    product: str
    result: str
    inside: frozenset[str]
    own: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """`weights` = exp(`score` - `largest`) / `total` along `dim`, their last but for sizes of 1. `factor` is the
    argument of the product with the value that is made of the weights by views and casts, `logsum` the node with the
    logarithm of exp(`largest`) * `total`."""

    weights: str
    score: str
    largest: str
    total: str
    dim: int
    factor: str
    logsum: str


def softmax_of(whole: AttentionNodes, nodes: Mapping[str, Node], calls: Mapping[str, Call]) -> Softmax | None:
    """The softmax that makes the weights; None where the map between the products is another one."""
    found = contracted(calls[nodes[whole.result].origin], nodes)
    assert found is not None
    for factor in (found.left.name, found.right.name):
        weights = nodes[_source(nodes, factor)]
        if weights.op != "div" or weights.name not in whole.inside or not all(isinstance(a, str) for a in weights.args):
            continue
        above, total = (_source(nodes, str(a)) for a in weights.args)
        apart = nodes[_source(nodes, str(nodes[above].args[0]))] if nodes[above].op == "exp" else weights
        if apart.op != "sub" or not all(isinstance(a, str) for a in apart.args):
            continue
        score, largest = str(apart.args[0]), _source(nodes, str(apart.args[1]))
        top, sums = nodes[largest], nodes[total]
        if (top.op, sums.op) not in (("softmax_stats", "softmax_stats"), ("max", "sum")) or top.dims != sums.dims:
            continue
        if len(top.dims) == 1 and nodes[score].shape == weights.shape == nodes[top.sources[0]].shape:
            return Softmax(weights=weights.name, score=score, largest=largest, total=total, dim=top.dims[0],
                           factor=factor, logsum=f"{weights.name}_logsum")  # fmt: skip
    return None


def logsum_nodes(softmax: Softmax, nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    """What a forward graph has besides, for the logarithm of the sums, in fp32."""
    made: list[Node] = []

    def add(op: str, *args: str, name: str = "") -> str:
        origin, shape = nodes[softmax.weights].origin, nodes[softmax.largest].shape
        name = name or f"{softmax.weights}_{op}{len(made)}"
        made.append(Node(name=name, op=op, shape=shape, dtype="f32", args=args, origin=origin))
        return name

    largest, total = (
        name if nodes[name].dtype == "f32" else add("to", name) for name in (softmax.largest, softmax.total)
    )
    add("add", largest, add("log", total), name=softmax.logsum)
    return tuple(made)


def differentiable(whole: AttentionNodes, nodes: Mapping[str, Node], calls: Mapping[str, Call]) -> bool:
    """Whether the derivative of this attention can be written with its scores computed again."""
    known = [contracted(calls[nodes[n].origin], nodes) for n in (whole.product, whole.result)]
    if any(found is None or not _plain(found, nodes[whole.result].dtype) for found in known):
        return False
    if not any(nodes[n].op in REDUCTIONS for n in whole.inside):
        return True
    softmax = softmax_of(whole, nodes, calls)
    return softmax is not None and all(_keeps_rows(v, nodes) for v in views_between(softmax, nodes))


def _keeps_rows(view: Node, nodes: Mapping[str, Node]) -> bool:
    """Whether one number for each row of the weights is seen through the view as one for each row."""
    return view.op == "permute" or (view.op == "reshape" and view.shape[-1:] == nodes[view.sources[0]].shape[-1:])


def _plain(found: Contracted, dtype: str) -> bool:
    words = (found.letters.left, found.letters.right, found.letters.result)
    known = [{*a, *b} for a, b in ((words[1], words[2]), (words[0], words[2]), (words[0], words[1]))]
    through = all(len({*w}) == len(w) and {*w} <= others for w, others in zip(words, known, strict=True))
    return through and not found.added and {found.left.dtype, found.right.dtype} == {dtype}


def _source(nodes: Mapping[str, Node], name: str) -> str:
    """What this is by views and conversions between floating types."""
    node = nodes[name]
    while node.op in VIEWS or (node.op == "to" and {node.dtype, nodes[node.sources[0]].dtype} <= {*FLOATS}):
        node = nodes[node.sources[0]]
    return node.name


def views_between(softmax: Softmax, nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    """The views between the weights and the factor, innermost first."""
    views, name = [], softmax.factor
    while name != softmax.weights:
        views += [nodes[name]] if nodes[name].op in VIEWS else []
        name = nodes[name].sources[0]
    return tuple(reversed(views))
