"""Convolutions are found with what is computed of them on the way out, and give what the module gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes.matched import fused
from fakes.realisers import cuda
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match

pytestmark = pytest.mark.each(3)


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def convolved(function: Callable[..., Any], *args: Tensor) -> list[Pattern]:
    """Those that are found, each held against the module in float64 (see `fused`)."""
    return [p for p in fused(function, *args).patterns if p.kind == "convolution"]


X, W, BIAS = rand(2, 8, 9, 7), rand(6, 8, 3, 3), rand(6)


@pytest.mark.parametrize(
    ("title", "domain", "function", "args"),
    [
        ("conv2d", (2, 6, 7, 5), F.conv2d, (X, W, BIAS)),
        ("conv2d -> relu", (2, 6, 9, 7), lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), (X, W, BIAS)),
        ("conv2d", (2, 6, 4, 7), lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(0, 2), dilation=(1, 2)), (X, W)),
        ("conv2d -> scale", (2, 2, 3, 7, 5), lambda x, w, b: F.conv2d(x, w, b, groups=2) * 2,
         (X, rand(6, 4, 3, 3), BIAS)),
        ("conv2d -> add -> tanh", (2, 2, 3, 7, 5), lambda x, w, c: (F.conv2d(x, w, groups=2) + c).tanh(),
         (X, rand(6, 4, 3, 3), rand(6, 1, 1))),
        ("conv2d -> gelu -> add", (2, 6, 7, 5), lambda x, w, b, y: F.gelu(F.conv2d(x, w, b)) + y,
         (X, W, BIAS, rand(2, 6, 7, 5))),
        ("conv1d", (2, 4, 14), lambda x, w: F.conv1d(x, w, dilation=3), (rand(2, 3, 20), rand(4, 3, 3))),
        ("conv3d -> tanh -> add", (2, 4, 4, 5, 6), lambda x, w, b, c: F.conv3d(x, w, b, padding="same").tanh() + c,
         (rand(2, 3, 4, 5, 6), rand(4, 3, 3, 3, 1), rand(4), rand(4, 1, 1, 1))),
        ("conv_transpose1d", (2, 5, 24), lambda x, w: F.conv_transpose1d(x, w, dilation=2),
         (rand(2, 3, 20), rand(3, 5, 3))),
        ("conv_transpose2d -> sigmoid", (2, 2, 3, 11, 9),
         lambda x, w, b: F.conv_transpose2d(x, w, b, padding=1, dilation=2, groups=2).sigmoid(),
         (X, rand(8, 3, 3, 3), BIAS)),
        ("conv_transpose3d -> relu", (2, 5, 6, 7, 8), lambda x, w: F.conv_transpose3d(x, w).relu(),
         (rand(2, 3, 4, 5, 6), rand(3, 5, 3, 3, 3))),
        ("conv_transpose2d -> relu", (2, 6, 19, 9), lambda x, w: F.conv_transpose2d(x, w, stride=(2, 1), padding=(0, 1),
                                                                                    dilation=(1, 2)).relu(),
         (X, rand(8, 6, 3, 3))),
        ("conv2d -> gelu -> add", (1, 6, 7, 5), lambda x, w, b, y: F.gelu(F.conv2d(x, w, b)) + y,
         (X[:1], W, BIAS, rand(1, 6, 7, 5).to(memory_format=torch.channels_last))),
        ("conv2d -> add -> tanh", (1, 2, 3, 1, 5), lambda x, w, c: (F.conv2d(x, w, groups=2) + c).tanh(),
         (X[:1, :, :3], rand(6, 4, 3, 3), rand(6, 1, 1))),
        ("conv_transpose1d", (2, 5, 61), lambda x, w: F.conv_transpose1d(x, w, stride=3, output_padding=1),
         (rand(2, 3, 20), rand(3, 5, 3))),
    ],
)  # fmt: skip
def test_operators_and_what_follows_them(title: str, domain: tuple[int, ...], function: Any, args: Any) -> None:
    (found,) = convolved(function, *args)
    assert (found.title, found.program.domain) == (title, domain)
    assert all(o.indexed for o in found.program.operands[:2])


def test_what_reads_it_stays_a_kernel_for_whoever_leaves_the_convolution_to_torch() -> None:
    matched = fused(lambda x, w: F.gelu(F.conv2d(x, w)) * 2, X, W)
    assert [p.kind for p in matched.patterns] == ["pointwise", "convolution"]
    assert matched.patterns[1].matches[0].spared == ("conv2d",)


@pytest.mark.parametrize(
    ("titles", "function"),
    [
        (["conv2d"], lambda x, w: F.conv2d(x, w[:, :4], groups=2).amax(1)),
        (["conv2d"], lambda x, w: F.conv2d(x, w).amax((1, 2))),
        (["conv2d"], lambda x, w: F.conv2d(x, w).flatten(2).softmax(-1)),
        (["conv2d"], lambda x, w: F.max_pool2d(F.conv2d(x, w), 3, stride=2)),
        (["conv2d"], lambda x, w: F.max_pool2d(F.conv2d(x, w), 2, padding=1)),
        (["conv2d", "relu -> conv2d -> add"], lambda x, w: F.conv2d(x, w).relu() + F.conv2d(x, -w)),
    ],
)
def test_what_is_no_epilogue_or_anothers_leaves_it_alone(titles: list[str], function: Any) -> None:
    assert [p.title for p in convolved(function, X, W)] == titles


def test_a_value_that_two_read_is_written_by_itself() -> None:
    def forward(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv2d(x, w)
        return y, y.relu()

    assert [p.title for p in convolved(forward, X, W)] == ["conv2d"]


def test_those_without_a_batch_stay_torchs() -> None:
    matched = fused(lambda x, w: F.conv2d(x, w), X[0], W)
    assert not matched.patterns and matched.unmatched == ("aten.conv2d.default: no skeleton",)


def last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)


@pytest.mark.parametrize(
    ("title", "domain", "function", "args"),
    [
        ("conv2d", (2, 7, 5, 6), F.conv2d, (last(X), W, BIAS)),
        ("conv2d", (2, 7, 5, 6), F.conv2d, (X, last(W))),
        ("conv2d -> relu", (2, 5, 4, 6), lambda x, w, b: F.conv2d(x, w, b, padding=1, stride=2).relu(),
         (last(X), last(W), BIAS)),
        ("conv2d -> add -> tanh", (2, 7, 5, 2, 3), lambda x, w, c: (F.conv2d(x, w, groups=2) + c).tanh(),
         (last(X), rand(6, 4, 3, 3), rand(6, 1, 1))),
        ("conv2d -> gelu -> add", (2, 7, 5, 6), lambda x, w, b, y: F.gelu(F.conv2d(x, w, b)) + y,
         (last(X), W, BIAS, last(rand(2, 6, 7, 5)))),
        ("conv2d -> add", (2, 7, 5, 6), lambda x, w, y: F.conv2d(x, w) + y, (last(X), W, rand(2, 6, 7, 5))),
        ("conv_transpose2d -> relu", (2, 19, 9, 6),
         lambda x, w: F.conv_transpose2d(x, w, stride=(2, 1), padding=(0, 1), dilation=(1, 2)).relu(),
         (last(X), rand(8, 6, 3, 3))),
        ("conv2d -> clone", (2, 6, 7, 5),
         lambda x, w: F.conv2d(x, w).contiguous(memory_format=torch.contiguous_format), (last(X), W)),
    ],
)  # fmt: skip
def test_in_channels_last_they_are_written_so_with_what_follows(
    title: str, domain: tuple[int, ...], function: Any, args: Any
) -> None:
    (found,) = convolved(function, *args)
    assert (found.title, found.program.domain) == (title, domain)
    assert found.matches[0].spared == (() if " -> " not in title else (found.nodes[0],))


def test_a_convolution_is_written_as_what_reads_it_lies() -> None:
    """Its own result is nobody's, however torch would lay it."""
    (found,) = convolved(lambda x, w: last(F.conv2d(x, w).relu()), X, W)
    assert found.program.domain in ((2, 7, 5, 6), (2, 6, 7, 5)) and "relu" in found.title


@pytest.mark.parametrize(
    ("title", "domain", "function", "args"),
    [
        ("conv2d -> relu", (2, 6, 63), lambda x, w, b: F.conv2d(x, w, b).relu(), (X, rand(6, 8, 1, 1), BIAS)),
        ("conv2d -> relu", (126, 6), lambda x, w, b: F.conv2d(x, w, b).relu(), (last(X), rand(6, 8, 1, 1), BIAS)),
        ("conv2d", (126, 6), F.conv2d, (last(X), rand(6, 8, 1, 1), BIAS)),
        ("conv2d -> add", (126, 6), lambda x, w, y: F.conv2d(x, w) + y,
         (last(X), rand(6, 8, 1, 1), last(rand(2, 6, 9, 7)))),
        ("conv1d -> scale", (2, 5, 20), lambda x, w: F.conv1d(x, w) * 2, (rand(2, 3, 20), rand(5, 3, 1))),
        ("conv_transpose2d", (2, 6, 63), F.conv_transpose2d, (X, rand(8, 6, 1, 1), BIAS)),
    ],
)  # fmt: skip
def test_one_of_single_pixels_is_a_product_of_matrices(
    title: str, domain: tuple[int, ...], function: Any, args: Any
) -> None:
    products = [p for p in fused(function, *args).patterns if p.kind == "product"]
    assert (products[-1].title, products[-1].program.domain) == (title, domain)
    assert not convolved(function, *args)
    assert products[-1].program.product is not None and products[-1].program.product.allow_tf32


def test_one_of_single_pixels_that_no_product_takes_is_a_convolution_still() -> None:
    strided = convolved(lambda x, w: F.conv2d(x, w, stride=2).relu(), X, rand(6, 8, 1, 1))
    assert [p.title for p in strided] == ["conv2d -> relu"]


class Bottleneck(nn.Module):
    """A ResNet's: 1x1, 3x3, 1x1, batch norms, and what is added."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.convs = nn.ModuleList([nn.Conv2d(channels, inner, 1, bias=False),
                                    nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
                                    nn.Conv2d(inner, out, 1, bias=False)])  # fmt: skip
        self.norms = nn.ModuleList([nn.BatchNorm2d(inner), nn.BatchNorm2d(inner), nn.BatchNorm2d(out)])
        self.down = None
        if stride > 1:
            self.down = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            y = y.relu() if i < 2 else y
        return (y + (x if self.down is None else self.down(x))).relu()


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("batch", "stride"), [(1, 1), (1, 2), (8, 1), (8, 2)])
def test_a_block_of_a_residual_network_is_one_kernel_a_convolution(
    batch: int, stride: int, memory: torch.memory_format
) -> None:
    block = Bottleneck(256, 64, stride).eval().half().to(memory_format=memory)
    x = rand(batch, 256, 56, 56).half().to(memory_format=memory)
    graph = trace(block, (x,), {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    titles = {p.title for p in matched.patterns if p.kind in ("product", "convolution")}
    wanted = {"conv2d -> batch_norm -> relu"}
    wanted |= {"conv2d -> batch_norm -> add -> relu"} if stride == 1 else {
        "conv2d", "batch_norm -> conv2d -> batch_norm -> add -> relu"}  # fmt: skip
    assert titles == wanted and not matched.unmatched
