# problem: norm
# line: resubmits
"""A torch.library operation with its fake implementation."""

import torch
from torch import nn


@torch.library.custom_op("museum_honest::scaled_gelu", mutates_args=())
def scaled_gelu(y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(y * scale)


@scaled_gelu.register_fake
def _(y, scale):
    return torch.empty_like(y)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.ops.museum_honest.scaled_gelu(self.norm(x), self.scale)
