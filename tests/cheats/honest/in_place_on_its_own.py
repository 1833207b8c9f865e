# problem: norm
# line: input-changed
"""Works in place, on buffers that it made."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = self.norm(x)
        return nn.functional.gelu(y.mul_(self.scale))
