"""Gradients of a convolution's weight: contractions over the batch and the output's places.

    dw[a, b, t] = sum over (n, o) of dense[n, a, o] * windowed[n, b, o stride + t dilation - padding]

`dense` is the upstream gradient and `windowed` the input; of a transposed convolution it is the other way round. The
domain is the weight's, of groups (G, A, B, *t). Contracted are (N, *o).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.access import Access, Position
from tilewright.ir.convolution import WeightGradientCall, weight_gradient
from tilewright.ir.graph import Node
from tilewright.ir.program import Contraction, Operand, Output, Program

from .region import Flow

Found = tuple[Program, Match]


def weight_gradients(
    flow: Flow, unsupported: Callable[[Program], str | None]
) -> tuple[list[Found], dict[str, str]]:  # fmt: skip
    """Those of a graph, and why others are left to torch, by the names of their nodes."""
    found: list[Found] = []
    left: dict[str, str] = {}
    for call in flow.graph.calls:
        whole = weight_gradient(call, flow.nodes)
        if whole is None or whole.node.name not in flow.live:
            continue
        made = _by_itself(whole)
        why = unsupported(made[0])
        if why is None:
            found.append(made)
        else:
            left[whole.node.name] = why
    return found, left


def _by_itself(whole: WeightGradientCall) -> Found:
    groups, spatial = whole.groups, len(whole.node.shape) - 2
    first, second, *taps = whole.node.shape
    grouped = () if groups == 1 else (groups,)
    domain = (*grouped, first // groups, second, *taps)
    operands, binds = zip(
        *(_operand(f"x{i}", node, groups) for i, node in enumerate((whole.dense, whole.windowed))), strict=True
    )
    contraction = _contraction(whole, domain, (operands[0], operands[1]), spatial)
    program = Program(
        domain=domain, operands=operands, body=(contraction,),
        outputs=(Output(name="v0", dtype=whole.node.dtype, shape=domain),),
    )  # fmt: skip
    written = Bind(node=whole.node.name, split=domain, order=tuple(range(len(domain))))
    return program, Match(nodes=(whole.node.name,), operands=binds, outputs=(written,))


def _operand(name: str, node: Node, groups: int) -> tuple[Operand, Bind]:
    """(N, channels, places), of groups (N, G, channels of one, places)."""
    batch, channels, *places = node.shape
    shape, order = (batch, channels, *places), node.order
    if groups > 1:
        shape = (batch, groups, channels // groups, *places)
        order = tuple(new for d in node.order for new in ((1, 2) if d == 1 else (d + (d > 1),)))
    operand = Operand(name=name, dtype=node.dtype, shape=shape, indexed=True, order=order)
    return operand, Bind(node=node.name, split=shape, order=tuple(range(len(shape))))


def _contraction(
    whole: WeightGradientCall, domain: tuple[int, ...], operands: tuple[Operand, Operand], spatial: int
) -> Contraction:  # fmt: skip
    dense, windowed = operands
    at, rank = len(domain) - spatial - 2, len(domain)
    over = (dense.shape[0], *dense.shape[2 + at :])
    group, batch = [Position(steps=((d, 1),)) for d in range(at)], Position(steps=((rank, 1),))
    channels = [Position(steps=((at + i, 1),)) for i in range(2)]
    out = [Position(steps=((rank + 1 + d, 1),)) for d in range(spatial)]
    places = [
        Position(start=-whole.padding[d], steps=((rank + 1 + d, whole.stride[d]), (at + 2 + d, whole.dilation[d])))
        for d in range(spatial)
    ]
    sides = zip(places, windowed.shape[2 + at :], strict=True)
    padded = any(not p.surely_inside(size, domain + over) for p, size in sides)
    return Contraction(
        result="v0", dtype=whole.node.dtype, over=over, allow_tf32=whole.node.dtype == "f32",
        left=Access(operand=dense.name, at=(batch, *group, channels[0], *out)),
        right=Access(operand=windowed.name, at=(batch, *group, channels[1], *places), padded=padded),
    )  # fmt: skip
