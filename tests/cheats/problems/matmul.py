"""A plain product of two inputs: long sums, no state."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(128, 384), torch.rand(384, 160)]


def get_init_inputs() -> list[int]:
    return []
