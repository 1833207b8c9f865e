"""Attention of a few places to those before them: the width is the weights', how many places there are is free."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return torch.softmax((y @ y.mT).masked_fill(ahead, float("-inf")), -1) @ y


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(4, 24, 32)]


def get_init_inputs() -> list[int]:
    return [32]
