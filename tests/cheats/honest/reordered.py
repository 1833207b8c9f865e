# problem: norm
# line: precision
"""The same sums in another order."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        mean = x.flip(-1).mean(-1, keepdim=True)
        centred = x - mean
        variance = centred.square().flip(-1).mean(-1, keepdim=True)
        y = centred * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
        return nn.functional.gelu(y * self.scale)
