"""A product of lower triangles: that they are triangles stands in the problem, and may be relied on."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).tril()


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(128, 128).tril(), torch.rand(128, 128).tril()]


def get_init_inputs() -> list[int]:
    return []
