"""Batch norm that is left in training, so that every call moves its statistics, and dense layers behind it."""

import torch
from torch import nn

CASES = [{"rows": 8192, "width": 1024}]
CPU_CASES = [{"rows": 512, "width": 256}]


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def get_inputs(rows: int, width: int) -> list[torch.Tensor]:
    return [torch.rand(rows, width)]


def get_init_inputs(rows: int, width: int) -> list[int]:
    return [width]
