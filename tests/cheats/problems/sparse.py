"""A comparison of a product that a mask hides nearly everywhere."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48) / 8)
        self.scale = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x @ self.weight
        return (h.masked_fill(~(x[:, :48] > 1.7), -1e9) > 1.5,)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(512, 64)]


def get_init_inputs() -> list[int]:
    return []
