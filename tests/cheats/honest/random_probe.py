# problem: norm
# line: races
"""Draws random numbers of its own for something that does not show in the result."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        order = torch.randperm(x.shape[0], device=x.device)
        y = torch.empty_like(x)
        y[order] = nn.functional.gelu(self.norm(x[order]) * self.scale)
        return y
