"""A product with a little noise."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48) / 8)
        self.scale = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x @ self.weight
        return (h + 0.005 * torch.randn_like(h),)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(128, 64)]


def get_init_inputs() -> list[int]:
    return []
