"""Dropout of whole channels: neighbours in memory are dropped together, and may be."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout2d(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x.relu() + 0.1 * x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(16, 64, 4, 4)]


def get_init_inputs() -> list[int]:
    return []
