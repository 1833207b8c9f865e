"""The mean of all rows, in every row: a result that is written in full, though one row says it all."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(0).repeat(x.shape[0], 1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(64, 500)]


def get_init_inputs() -> list[int]:
    return []
