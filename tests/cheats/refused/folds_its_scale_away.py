# problem: norm
# line: input-changed, loose-equality
# refused: wrong_state
# guards: kept state
"""Multiplies the scale into the norm's own weights, and leaves ones behind: right, and another checkpoint."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = nn.functional.gelu(self.norm(x) * self.scale)
        with torch.no_grad():
            self.norm.weight.mul_(self.scale)
            self.norm.bias.mul_(self.scale)
            self.scale.fill_(1)
        return y
