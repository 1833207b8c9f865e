"""Batch norm and dropout, both as in training: a call draws, and moves statistics."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(256, 96)]


def get_init_inputs() -> list[int]:
    return [96]
