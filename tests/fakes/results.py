"""Layers with several results, for the tests of what a product's kernel writes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def saved(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return y, F.gelu(y)


def masked(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return y > 0, F.relu(y)
