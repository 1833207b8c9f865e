"""Logarithms, of which some are not numbers and some infinite."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)


def get_inputs() -> list[torch.Tensor]:
    x = torch.randn(64, 500)
    return [torch.where(x.abs() < 0.1, torch.zeros_like(x), x)]


def get_init_inputs() -> list[int]:
    return []
