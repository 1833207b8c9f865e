"""Gradients of convolutions against torch's own in float64: dense, grouped, transposed and depthwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.gradients import agree, leaf, traced
from tilewright.frontend.autodiff import segments, with_depthwise
from tilewright.ir.graph import Graph

pytestmark = pytest.mark.filterwarnings("ignore")


def conv(dims: int, *, transposed: bool = False, **more: Any) -> Callable[..., Tensor]:
    function = getattr(F, f"conv{'_transpose' * transposed}{dims}d")
    return lambda x, w, *bias: function(x, w, *bias, **more)


DENSE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "1-D": (conv(1, stride=2, padding=1), (leaf(2, 3, 10), leaf(4, 3, 3), leaf(4))),
    "2-D, without a bias": (conv(2, padding=(1, 0), dilation=(1, 2)), (leaf(2, 3, 7, 8), leaf(5, 3, 3, 2))),
    "2-D, odd end": (conv(2, stride=3), (leaf(2, 3, 9, 12), leaf(5, 3, 3, 2), leaf(5))),
    "3-D": (conv(3, stride=(1, 2, 1), padding=1), (leaf(1, 2, 4, 5, 6), leaf(3, 2, 3, 2, 1), leaf(3))),
    "groups": (conv(2, groups=2, padding="same"), (leaf(2, 4, 5, 6), leaf(6, 2, 3, 3), leaf(6))),
    "1x1": (conv(2), (leaf(2, 4, 5, 6), leaf(3, 4, 1, 1), leaf(3))),
    "transposed": (conv(2, transposed=True, stride=2, padding=1, output_padding=(1, 0)),
                   (leaf(2, 4, 5, 6), leaf(4, 3, 3, 3), leaf(3))),
    "transposed groups": (conv(1, transposed=True, stride=3, groups=2, dilation=2),
                          (leaf(2, 4, 5), leaf(4, 3, 3), leaf(6))),
}  # fmt: skip
DEPTHWISE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "2-D": (conv(2, groups=4, padding=1), (leaf(2, 4, 7, 6), leaf(4, 1, 3, 3), leaf(4))),
    "stride": (conv(2, groups=4, padding=(0, 2), stride=(2, 1)), (leaf(2, 4, 7, 6), leaf(4, 1, 3, 5))),
    "dilation": (conv(1, groups=3, padding=1, dilation=2), (leaf(2, 3, 12), leaf(3, 1, 4), leaf(3))),
    "multiplier": (conv(2, groups=3, padding=1), (leaf(2, 3, 5, 6), leaf(6, 1, 3, 3), leaf(6))),
    "much padding": (conv(1, groups=3, padding=4), (leaf(2, 3, 7), leaf(3, 1, 3), leaf(3))),
}


@pytest.mark.parametrize("cases", [DENSE, DEPTHWISE])
def test_gradients_are_torchs(cases: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]) -> None:
    for function, inputs in cases.values():
        agree(function, *inputs)


def test_what_reads_a_convolution_is_in_its_segment() -> None:
    """A block as networks have it: statistics, their gradients, and those of a residual."""

    def block(x: Tensor, w: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        y = F.batch_norm(F.conv2d(x, w, bias, padding=1), None, None, scale, shift, training=True)
        return F.silu(y) + x

    segment = agree(block, leaf(3, 4, 5, 6), leaf(4, 4, 3, 3), leaf(4), leaf(4), leaf(4))
    assert segment.title.startswith("conv2d -> ") and "silu" in segment.title


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_a_gradient_that_nobody_asks_for_is_not_made(wanted: tuple[bool, ...]) -> None:
    given = [t.detach().requires_grad_(w) for t, w in zip(DENSE["1-D"][1], wanted, strict=True)]
    segment = agree(DENSE["1-D"][0], *given)
    targets = [c.target for c in segment.backward.calls if c.target.startswith("aten.convolution")]
    known = ["aten.convolution.default", "aten.convolution_backward.default"]
    assert targets == [t for t, w in zip(known, wanted, strict=False) if w]


def test_uneven_padding_stays_with_torch() -> None:
    """Zeros of one side more than of the other, as the convolution the other way has none."""
    x, w = leaf(2, 3, 9), leaf(4, 3, 4)
    assert not segments(traced_of(lambda x, w: F.conv1d(x, w, padding="same"), x, w), products=True)


def traced_of(function: Callable[..., Any], *inputs: Tensor) -> Graph:
    class Module(torch.nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return function(*args)

    return traced(Module(), inputs)


@pytest.mark.parametrize(("case", "spelt"), [("2-D", 2), ("stride", 1), ("multiplier", 1)])
def test_depthwise_gradients_are_sums_over_windows(case: str, spelt: int) -> None:
    """The input's where the stride is 1, and each channel has one result; the weight's for any."""
    function, inputs = DEPTHWISE[case]
    (segment,) = segments(traced_of(function, *inputs), products=True)
    backward = with_depthwise(segment.backward)
    assert sum(n.op == "load" for n in backward.nodes) == spelt
    assert sum(n.op == "call" for n in backward.nodes) == 2 - spelt
