"""Gradients of a convolution's weight are contractions over pixels, and give what torch gives."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.matched import fused

CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 3, 9), (4, 3, 3), {"stride": 2, "padding": 1}),
    ((2, 3, 7, 8), (5, 3, 3, 2), {"padding": (1, 0), "dilation": (1, 2)}),
    ((2, 6, 7, 8), (4, 3, 3, 3), {"groups": 2, "padding": 1}),
    ((1, 2, 4, 5, 6), (3, 2, 3, 1, 2), {"stride": (1, 2, 1)}),
    ((2, 4, 5, 6), (3, 4, 1, 1), {}),
    ((2, 4, 5, 6), (4, 3, 3, 3), {"transposed": True, "stride": 2, "padding": 1, "output_padding": (1, 0)}),
    ((2, 4, 5), (4, 3, 3), {"transposed": True, "groups": 2, "stride": 3}),
)


def numbers(value: Any, rank: int) -> list[int]:
    return [value] * rank if isinstance(value, int) else list(value)


@pytest.mark.parametrize(("x_shape", "w_shape", "how"), CASES)
def test_a_weights_gradient_is_a_contraction_over_pixels(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], how: dict[str, Any]
) -> None:
    rank, groups, transposed = len(x_shape) - 2, how.get("groups", 1), how.get("transposed", False)
    stride, padding, dilation = (numbers(how.get(n, d), rank) for n, d in
                                 (("stride", 1), ("padding", 0), ("dilation", 1)))  # fmt: skip
    more = numbers(how.get("output_padding", 0), rank)
    rand = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=rand) for shape in (x_shape, w_shape))
    y = torch.convolution(x, w, None, stride, padding, dilation, transposed, more, groups)
    g = torch.randn(y.shape, generator=rand)

    def backward(g: Tensor, x: Tensor, w: Tensor) -> Any:
        return torch.ops.aten.convolution_backward(
            g, x, w, None, stride, padding, dilation, transposed, more, groups, [False, True, False]
        )[1]

    (found,) = fused(backward, g, x, w).patterns
    item = found.program.product
    assert found.kind == "convolution" and item is not None
    dense = x if transposed else g
    assert prod(item.over) == dense.shape[0] * prod(dense.shape[2:]) and prod(found.program.domain) == w.numel()
