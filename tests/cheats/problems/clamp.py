"""Clamp to wide bounds: on most inputs a copy, so that a view of the input has the right values."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, -1e30, 1e30)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(64, 1000)]


def get_init_inputs() -> list[int]:
    return []
