"""Which sizes may be open: those of which torch.export, or trying all, says that the module computes the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fakes.modules import Applies
from tilewright.facts.problem import OpenSize
from tilewright.frontend.sizes import why_not_open

BATCH, SEQ = OpenSize(name="batch", size=4, low=1, high=16), OpenSize(name="seq", size=24, low=2, high=64)


def why(function: Callable[[Tensor], Tensor]) -> str:
    return why_not_open(Applies(function), (torch.randn(4, 24, 8),), {}, lambda tensor: {0: BATCH, 1: SEQ})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x @ x.mT, -1).reshape(-1, x.shape[1]),  # torch.export can't prove min(s, s * s) == s
        lambda x: x.mean(1) + x.sum((0, 1)) / x.shape[0],
    ],
)
def test_sizes_that_nothing_is_decided_by_are_open(function: Callable[[Tensor], Tensor]) -> None:
    assert why(function) == ""


@pytest.mark.parametrize(
    "function",
    [lambda x: x * 2 if x.shape[1] > 20 else x, lambda x: x[:, :10], lambda x: x * 2 if x.shape[0] % 2 else x],
    ids=["large", "cut", "odd"],
)
def test_sizes_that_something_is_decided_by_are_not(function: Callable[[Tensor], Tensor]) -> None:
    assert why(function).startswith("torch.export: ")
