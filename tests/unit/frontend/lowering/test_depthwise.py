"""Depthwise convolutions in our vocabulary: what torch computes, whatever the setting; others stay torch's calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .test_pool import agrees, image

pytestmark = [pytest.mark.each(3), pytest.mark.filterwarnings("ignore")]


def convolved(x: Tensor, w: Tensor, b: Tensor | None = None, **settings: Any) -> Tensor:
    return (F.conv2d if x.dim() == 4 else F.conv1d)(x, w, b, groups=x.shape[1], **settings)


@pytest.mark.parametrize("settings", [
    {}, {"padding": 1}, {"padding": (2, 0), "stride": (1, 2)}, {"dilation": 2, "padding": 2}, {"stride": 3},
    {"padding": "same"}, {"padding": "same", "dilation": (3, 1)}, {"padding": "valid"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("each", [1, 3])
def test_two_dimensions(settings: dict[str, Any], each: int) -> None:
    agrees(lambda x, w: convolved(x, w, **settings), image(2, 3, 9, 11), image(3 * each, 1, 3, 4))


def test_one_dimension_bias_and_what_is_around() -> None:
    x, w, b = image(2, 4, 31), image(8, 1, 5), image(8)
    agrees(lambda x, w, b: convolved(torch.relu(x), w, b, padding=2, stride=2).sigmoid(), x, w, b)
    agrees(lambda x, w: convolved(x, w), image(2, 4, 9, 9), image(4, 1, 9, 1))


def test_others_stay_calls() -> None:
    x = image(2, 4, 9, 9)
    agrees(lambda x, w: F.conv2d(x, w), x, image(4, 4, 3, 3), opaque=True)
    agrees(lambda x, w: F.conv2d(x, w, groups=2), x, image(4, 2, 3, 3), opaque=True)
    agrees(convolved, x, image(4 * 5, 1, 3, 3), opaque=True)
    agrees(convolved, x, image(4, 1, 1, 1), opaque=True)
    agrees(convolved, image(1, 2, 20, 20), image(2, 1, 12, 12), opaque=True)
    agrees(convolved, x.to(memory_format=torch.channels_last), image(8, 1, 3, 3), opaque=True)


@pytest.mark.parametrize("settings", [{}, {"padding": (2, 0), "stride": (1, 2)}, {"padding": "same"}], ids=str)
def test_channels_side_by_side_stay_there(settings: dict[str, Any]) -> None:
    x = image(2, 4, 9, 11).to(memory_format=torch.channels_last)
    graph = agrees(lambda x, w, b: convolved(x, w, b, **settings), x, image(4, 1, 3, 4), image(4))
    (load,) = (n for n in graph.nodes if n.op == "load")
    assert load.shape[0] == 2 and load.shape[3:] == (4, 3, 4)
