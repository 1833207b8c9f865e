# problem: norm
# line: lazy-tensor
# refused: wrong_type
# guards: exact type
"""A tensor subclass that could put the work off until somebody looks."""

import torch
from torch import nn


class Lazy(torch.Tensor):
    pass


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return (nn.functional.gelu(self.norm(x) * self.scale)).as_subclass(Lazy)
