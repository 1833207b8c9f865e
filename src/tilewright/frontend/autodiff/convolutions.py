"""Gradients of a convolution: of its input the convolution the other way, of its weight what torch's own backward
gives, of its bias sums over all but the channels."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tilewright.ir.convolution import ConvolutionCall, input_gradient_call, weight_gradient_call

from ..lowering.lower import Expr
from .again import Again
from .tape import summed_to


def leads_through_convolution(found: ConvolutionCall) -> bool:
    """Whether gradients can be led through this convolution: not where padding "same" is uneven."""
    return min(found.output_padding) >= 0


def convolution_shares(
    again: Again, found: ConvolutionCall, g: Expr, wanted: Collection[str]
) -> Iterator[tuple[str, Expr]]:  # fmt: skip
    """What each argument in `wanted`, by its name, gets of the gradient `g` of the result."""
    tape, node = again.tape, found.node
    if found.bias is not None and found.bias.name in wanted:
        ones = (1,) * len(found.out)
        yield (
            found.bias.name,
            summed_to((*found.bias.shape, *ones), g, node.shape)
            .expand((*found.bias.shape, *ones))
            .reshape(found.bias.shape),
        )
    if found.x.name not in wanted and found.weight.name not in wanted:
        return
    upstream, weight = g.expand(node.shape).to(node.dtype), again.value(found.weight.name)
    if found.x.name in wanted:
        name = tape.fresh()
        call = input_gradient_call(found, upstream.node.name, weight.node.name, name=f"{name}_conv", result=name)
        yield found.x.name, tape.called(call, like=found.x)
    if found.weight.name in wanted:
        name, x = tape.fresh(), again.value(found.x.name)
        call = weight_gradient_call(
            found, upstream.node.name, weight.node.name, x.node.name, name=f"{name}_weight", result=name
        )
        yield found.weight.name, tape.called(call, like=found.weight, item=1)
