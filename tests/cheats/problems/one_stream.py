"""Weights and inputs drawn after the same seed: they are the same numbers."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def get_inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(5000)]


def get_init_inputs() -> list[int]:
    return [5000]
