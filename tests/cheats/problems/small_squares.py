"""Where a product is not quite nought: of few elements, next to none of which are that small."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 8) / 512**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).square() > 1e-6


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 512)]


def get_init_inputs() -> list[int]:
    return []
