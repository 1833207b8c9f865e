"""Norms behind convolutions: their statistics leave the convolution, and what is computed with them is what the module
gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.matched import fused
from tilewright.facts.pattern import Choice, Pattern, without_idle
from tilewright.fusion import normed


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


X, W, B, V = rand(2, 8, 9, 8), rand(6, 8, 3, 3), rand(6), rand(6).abs()
X3, W3 = rand(2, 4, 5, 4, 6), rand(4, 6, 3, 3, 3)


def group(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(torch.sigmoid(F.conv2d(x, w, b)), 3, b, b)


def instance(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.instance_norm(F.conv2d(x, w, b)) / 2


def batch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(F.mish(F.conv2d(x, w)), None, None, b, b, training=True) * 2


def volume(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.hardswish(F.group_norm(F.silu(F.conv_transpose3d(x, w, b, stride=2, padding=1)), 2, b, b))


def pooled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.max_pool2d(F.group_norm(F.conv2d(x, w, b), 3, b, b) * b[:, None, None], 2).clamp(0, 1)


def channels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.conv2d(x, w, b)
    return torch.logsumexp(y + F.hardswish(torch.tanh(F.group_norm(y, 3, b, b))), 1, keepdim=True)


def places(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(F.hardswish(F.conv2d(x, w)), 3, b, b).mean((2, 3))


def averaged(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.avg_pool2d(F.batch_norm(F.conv2d(x, w, b), None, None, b, b, training=True), 2)


def conv(found: Any) -> list[Pattern]:
    return [p for p in found.patterns if p.kind == "convolution"]


def busy(found: Any) -> list[str]:
    """The titles of what runs where all is chosen."""
    recipe = tuple(Choice(pattern=p.id, point=()) for p in found.patterns)
    left = {c.pattern for c in without_idle([found.patterns], recipe)}
    return [p.title for p in found.patterns if p.id in left]


@pytest.mark.parametrize(
    ("function", "args", "reduced"),
    [(group, (X, W, B), (2, 3, 4)), (instance, (X, W, B), (2, 3)), (batch, (X, W, B), (0, 2, 3)),
     (volume, (X3, W3, B), (2, 3, 4, 5))],
)  # fmt: skip
def test_a_norm_is_one_program_with_its_convolution(
    function: Callable[..., Tensor], args: tuple[Tensor, ...], reduced: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normed, "_FLOPS_A_BYTE", 0)
    found = fused(function, *args)
    alone, whole = conv(found)
    assert whole.program.reduced == reduced and not alone.program.reduced
    assert busy(found) == [whole.title]


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("function", "args", "reads"),
    [(group, (X, W, B), 1), (instance, (X, W, B), 1), (batch, (X, W, B), 1), (volume, (X3, W3, B), 1),
     (pooled, (X, W, B), 2), (channels, (X, W, B), 2), (places, (X, W, B), 2), (averaged, (X, W, B), 2)],
)  # fmt: skip
def test_a_norm_is_two_convolutions_where_that_is_less(
    function: Callable[..., Tensor], args: tuple[Tensor, ...], reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that writes statistics alone, and one that goes on with what reads the norm; nothing else runs."""
    monkeypatch.setattr(normed, "_FLOPS_A_BYTE", 10**9)
    found = fused(function, *args)
    alone, rest, statistics = conv(found)
    assert not alone.program.reduced
    assert all(o.shape != statistics.program.domain for o in statistics.program.outputs)
    assert {p.op for p in statistics.program.body} >= {"moments"} and "moments" not in {p.op for p in rest.program.body}
    assert busy(found) == [rest.title, statistics.title]
    assert not found.unmatched


def test_moved_buffers_leave_with_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normed, "_FLOPS_A_BYTE", 0)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(8, 6, 3), torch.nn.BatchNorm2d(6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.norm(self.conv(x)))

    from tilewright.facts.space import Space
    from tilewright.frontend.trace import trace
    from tilewright.fusion import match

    found = match(trace(Block(), (X,), {}), unsupported=lambda p: None, space=lambda p: Space(knobs=(), points=((),)),
                  tiny_bytes=0)  # fmt: skip
    _, whole = conv(found)
    assert sorted(o.shape for o in whole.program.outputs) == [(1, 6, 1, 1), (1, 6, 1, 1), (2, 6, 7, 6)]
