"""A row sum at two widths, of which one is no multiple of anything."""

import torch
from torch import nn

CASES = [{"width": 256}, {"width": 251}]


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(-1)


def get_inputs(width: int) -> list[torch.Tensor]:
    return [torch.rand(40, width)]


def get_init_inputs(width: int) -> list[int]:
    return []
