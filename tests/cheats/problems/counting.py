"""Counts its calls in a plain attribute, and its results hang on the count."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(self.linear(x)) * (1 + 1 / self.calls)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(128, 96)]


def get_init_inputs() -> list[int]:
    return [96]
