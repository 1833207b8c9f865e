"""Columns in another order, which stands in a buffer of indices, and a mask in floating point, as many keep it."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(width).flip(0))
        self.register_buffer("kept", (torch.arange(width) % 4 > 0).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x[:, self.order].masked_fill(self.kept == 0, 0.5))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(96, 384)]


def get_init_inputs() -> list[int]:
    return [384]
