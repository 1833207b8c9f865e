# problem: norm
# line: lazy-tensor
# refused: wrong_type
# guards: exact type
"""A tensor subclass that says its class is torch.Tensor."""

import torch
from torch import nn


class Honest(torch.Tensor):
    @property
    def __class__(self):
        return torch.Tensor


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale).as_subclass(Honest)
