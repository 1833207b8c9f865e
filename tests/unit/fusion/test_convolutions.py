"""Convolutions are found with what is computed of them on the way out, and give what the module gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.matched import fused
from tilewright.facts.pattern import Pattern

pytestmark = [pytest.mark.usefixtures("proven_convolutions"), pytest.mark.each(3)]


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
        (["conv2d"], lambda x, w: F.conv2d(x, w).amax(1)),
        (["conv2d"], lambda x, w: F.conv2d(x, w).flatten(2).softmax(-1)),
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


def test_channels_last_ones_and_those_without_a_batch_stay_torchs() -> None:
    matched = fused(lambda x, w: F.conv2d(x, w), X[0], W)  # without a batch
    assert not matched.patterns and matched.unmatched == ("aten.conv2d.default: no skeleton",)
    lying = X.to(memory_format=torch.channels_last)
    matched = fused(lambda x, w: F.conv2d(x, w), lying, W)
    assert not matched.patterns and "its result lies in another order" in matched.unmatched[0]
