"""Reductions of a convolution's channels, places or windows become its epilogue, and give what the module gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.matched import fused
from tilewright.facts.pattern import Pattern
from tilewright.ir.pooled import unwindowed

pytestmark = pytest.mark.each(3)


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def reduced(function: Any, *args: Tensor) -> Pattern:
    """The convolution that reduces, held against the module in float64 (see `fused`), beside one that does not."""
    plain, found = (p for p in fused(function, *args).patterns if p.kind == "convolution")
    assert not plain.program.reduced and found.matches[0].spared == plain.matches[0].nodes
    return found


X, W, B = rand(2, 8, 9, 8), rand(6, 8, 3, 3), rand(6)
X3, W3 = rand(2, 4, 5, 4, 6), rand(4, 6, 3, 3, 3)


@pytest.mark.parametrize(
    ("title", "over", "function", "args"),
    [
        ("conv2d -> min -> tanh", (1,), lambda x, w, b: F.conv2d(x, w, b).min(1, keepdim=True)[0].tanh(), (X, W, B)),
        ("conv2d -> scale -> amax", (1,), lambda x, w: (F.conv2d(x, w) * 2).amax(1), (X, W)),
        ("conv2d -> softmax -> sigmoid", (1,), lambda x, w, b: F.conv2d(x, w, b).softmax(1).sigmoid(), (X, W, B)),
        ("conv2d -> logsumexp -> scale", (1,), lambda x, w: F.conv2d(x, w).logsumexp(1, keepdim=True) * 2, (X, W)),
        ("conv2d -> softmax", (3,), lambda x, w: F.conv2d(x, w).softmax(1), (last(X), W)),
        ("conv2d -> softmax -> mul -> amax", (1,), lambda x, w, c: (F.conv2d(x, w).softmax(1) * c).amax(1),
         (X, W, rand(6, 1, 1))),
        ("conv2d -> add -> mean", (1,), lambda x, w, y: (F.conv2d(x, w) + y).mean(1), (X, W, rand(2, 6, 7, 6))),
        ("conv_transpose3d -> softmax", (1,),
         lambda x, w, b: F.conv_transpose3d(x, w, b, stride=2, padding=1).softmax(1), (X3, W3, B)),
        ("conv2d -> gelu -> mean", (2, 3), lambda x, w, b: F.gelu(F.conv2d(x, w, b)).mean((2, 3)), (X, W, B)),
        ("conv2d -> amax", (2, 3), lambda x, w: F.conv2d(x, w).amax((2, 3), keepdim=True), (X, W)),
        ("conv3d -> relu -> sum -> add", (2, 3, 4),
         lambda x, w, c: F.conv3d(x, w).relu().sum((2, 3, 4)) + c, (X3, rand(6, 4, 3, 3, 3), B)),
        ("conv1d -> mean", (2,), lambda x, w: F.conv1d(x, w).mean(-1), (rand(2, 3, 20), rand(4, 3, 3))),
    ],
)  # fmt: skip
def test_channels_and_places(title: str, over: tuple[int, ...], function: Any, args: Any) -> None:
    found = reduced(function, *args)
    assert (found.title, found.program.reduced) == (title, over)


@pytest.mark.parametrize(
    ("title", "window", "function", "args"),
    [
        ("conv2d -> sub -> hardswish -> max_pool2d -> mish", (2, 2),
         lambda x, w, b: F.mish(F.max_pool2d(F.hardswish(F.conv2d(x, w, b) - 0.5), 2)), (X, W, B)),
        ("conv2d -> tanh -> avg_pool2d", (3, 2), lambda x, w: F.avg_pool2d(F.conv2d(x, w).tanh(), (3, 2)), (X, W)),
        ("conv2d -> max_pool2d", (1, 2), lambda x, w: F.max_pool2d(F.conv2d(x, w), (1, 2)), (X, W)),
        ("conv2d -> mul -> max_pool2d -> add", (2, 2),
         lambda x, w, c, y: F.max_pool2d(F.conv2d(x, w) * c, 2) + y, (X, W, rand(6, 1, 1), rand(2, 6, 3, 3))),
        ("conv_transpose3d -> max_pool3d", (2, 2, 2),
         lambda x, w: F.max_pool3d(F.conv_transpose3d(x, w, stride=2, padding=1, output_padding=1), 2), (X3, W3)),
        ("conv1d -> relu -> max_pool1d", (4,), lambda x, w: F.max_pool1d(F.conv1d(x, w).relu(), 4),
         (rand(2, 3, 22), rand(4, 3, 3))),
    ],
)  # fmt: skip
def test_windows_are_the_last_dimensions(title: str, window: tuple[int, ...], function: Any, args: Any) -> None:
    found = reduced(function, *args)
    back = unwindowed(found.program)
    assert found.title == title and back is not None and back[1] == window
    assert found.program.reduced == tuple(range(len(window) + 2, 2 * len(window) + 2))
