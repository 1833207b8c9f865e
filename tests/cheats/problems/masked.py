"""A softmax under a mask that stands in a buffer: the constructor makes a triangle, a checkpoint may hold another."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(width, width, dtype=torch.bool).tril())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.masked_fill(~self.mask, float("-inf")), -1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(4, 128, 128)]


def get_init_inputs() -> list[int]:
    return [128]
