"""Depthwise convolutions of a graph, and their gradients, as sums over windows of each channel.

    y[n, c, o]   = sum over t of x[n, c, o s - p + t d] w[c, t]                  see lowering.depthwise
    dx[n, c, i]  = sum over t of g[n, c, i + p - r + t d] w[c, T - 1 - t]        of stride 1; r = (T - 1) d
    dw[c, t]     = sum over (n, o) of x[n, c, o s - p + t d] g[n, c, o]

A call keeps its place, for whoever leaves its nodes to torch.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch

from tilewright.ir.access import Position
from tilewright.ir.convolution import ConvolutionCall, WeightGradientCall, convolved, weight_gradient
from tilewright.ir.graph import VIEWS, Call, Graph, Node

from ..lowering.depthwise import DEPTHWISE_LOWERINGS, MOST_MULTIPLIER, MOST_TAPS
from ..lowering.lower import FLOATS, TORCH_DTYPES, Builder, Expr, NotLowered
from ..lowering.lowerings import LOWERINGS


def with_depthwise(graph: Graph) -> Graph:
    """The same values; nodes say what depthwise convolutions and their gradients are, where one kernel may do it."""
    nodes = {n.name: n for n in graph.nodes}
    made = {call.name: found for call in graph.calls if (found := _spelt(call, nodes)) is not None}
    if not made:
        return graph
    origins = {n.name: n.origin for n in graph.nodes if n.op == "call"}
    whole = [m for n in graph.nodes for m in (made.get(origins.get(n.name, "")) or [n])]
    return replace(graph, nodes=tuple(whole))


def _spelt(call: Call, nodes: dict[str, Node]) -> list[Node] | None:
    """The nodes of a call, the last of them under its result's name; None of what stays a call."""
    forward = convolved(call, nodes, types=FLOATS)
    gradient = weight_gradient(call, nodes, types=FLOATS) if forward is None else None
    b = _Written(origin=call.name)
    try:
        if forward is not None:
            return b.result(_convolved(b, forward), forward.node)
        return None if gradient is None else b.result(_weights(b, gradient), gradient.node)
    except NotLowered:
        return None


class _Written(Builder):
    """The nodes of one call."""

    def __init__(self, *, origin: str) -> None:
        super().__init__()
        self.origin = origin

    def given(self, node: Node) -> Expr:
        """A value that the call reads, which is no node of its own."""
        return Expr(self, node)

    def result(self, value: Expr, node: Node) -> list[Node]:
        """What was written, with the value under the node's name."""
        value = value.to(node.dtype)
        last = self.nodes[value.node.name]
        order = () if last.op in VIEWS else node.order
        mine = {**self.nodes, last.name: replace(last, name=node.name, order=order)}
        return [n for name, n in mine.items() if name != last.name] + [mine[last.name]]


def _convolved(b: _Written, found: ConvolutionCall) -> Expr:
    x, weight = b.given(found.x), b.given(found.weight)
    bias = None if found.bias is None else b.given(found.bias)
    if not found.transposed:
        return _along(b, found, x, weight, bias, found.stride, found.padding)
    if max(found.stride) > 1 or weight.shape[1] > 1 or bias is not None:
        raise NotLowered
    flipped = LOWERINGS["flip"](b, weight, list(range(2, len(weight.shape))))
    sides = zip(weight.shape[2:], found.dilation, found.padding, strict=True)
    return _along(b, found, x, flipped, None, found.stride, tuple((t - 1) * d - p for t, d, p in sides))


def _along(
    b: _Written, found: ConvolutionCall, x: Expr, weight: Expr, bias: Expr | None, stride: Any, padding: Any
) -> Expr:  # fmt: skip
    name = f"conv{len(found.out)}d"
    if name not in DEPTHWISE_LOWERINGS:
        raise NotLowered
    b.ins, b.outs = (_described(found.x),), (_described(replace(found.node, order=found.x.order)),)
    made: Expr = DEPTHWISE_LOWERINGS[name](b, x, weight, bias, stride, padding, found.dilation, found.groups)
    return made


def _described(node: Node) -> torch.Tensor:
    """A tensor without data that lies as the node does."""
    order = node.order or tuple(range(len(node.shape)))
    made = torch.empty([node.shape[d] for d in order], dtype=TORCH_DTYPES[node.dtype], device="meta")
    return made.permute([order.index(d) for d in range(len(order))])


def _weights(b: _Written, found: WeightGradientCall) -> Expr:
    """Over (channel, multiplier, taps), each the sum over images and places."""
    images, channels, *_ = found.x.shape
    made, _, *taps = found.node.shape
    if found.transposed or found.groups != channels or not 1 < prod(taps) <= MOST_TAPS:
        raise NotLowered
    if made > MOST_MULTIPLIER * channels or found.x.order or found.upstream.order:
        raise NotLowered
    counts, rank = found.upstream.shape[2:], len(taps)
    first = 3 + rank  # the places; the images are the dimension before them
    at = [Position(steps=((2 + rank, 1),)), Position(steps=((0, 1),))]
    at += [
        Position(start=-found.padding[i], steps=((first + i, found.stride[i]), (2 + i, found.dilation[i])))
        for i in range(rank)
    ]
    shape = (channels, 1, *taps, images, *counts)
    values = b.load(b.given(found.x), shape, at, 0.0).wide()
    upstream = b.given(found.upstream).reshape((images, channels, made // channels, *counts))
    upstream = upstream.permute((1, 2, 0, *range(3, 3 + rank)))
    factors = upstream.reshape((channels, made // channels, *(1 for _ in taps), images, *counts)).wide()
    return (values * factors).reduce("sum", range(2 + rank, 3 + 2 * rank)).reshape(found.node.shape)
