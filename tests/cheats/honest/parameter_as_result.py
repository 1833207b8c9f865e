# problem: norm
# line: lazy-tensor
"""Hands its result back as a Parameter, freshly made."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return nn.Parameter(nn.functional.gelu(self.norm(x) * self.scale), requires_grad=False)
