"""Means of many squares: errors of a lower class cancel in them, unless the inputs all lose."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean(-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(8, 65536)]


def get_init_inputs() -> list[int]:
    return []
