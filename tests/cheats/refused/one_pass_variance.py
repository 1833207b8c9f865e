# problem: norm
# line: precision
# refused: wrong_values
# guards: families
"""Variance as the mean of squares less the square of the mean: cancels where the mean is large."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.square().mean(-1, keepdim=True) - mean.square()
        y = (x - mean) * torch.rsqrt(variance.clamp_min(0) + self.norm.eps)
        return nn.functional.gelu((y * self.norm.weight + self.norm.bias) * self.scale)
