# problem: norm
# line: loose-equality
"""Has a constant in a buffer that is no part of its state."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("root", torch.tensor(0.5).sqrt(), persistent=False)

    def forward(self, x):
        y = self.norm(x) * self.scale
        return y * 0.5 * (1 + torch.erf(y * self.root))
