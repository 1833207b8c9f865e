"""Dropout as in training, after a scale: two calls never give the same, and neither may two calls of another."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x * 2.0)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(64, 300)]


def get_init_inputs() -> list[int]:
    return []
