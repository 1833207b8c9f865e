"""Judged in training: batch norm, which moves its buffers, then a linear layer with GELU."""

import torch
from torch import nn

MODE = "training"


class Model(nn.Module):
    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.linear(self.norm(x)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(128, 96)]


def get_init_inputs() -> list[int]:
    return [96, 64]
