# problem: norm
# line: loose-equality
# refused: wrong_shape
# guards: exact shape
"""A leading dimension too many, which broadcasting would forgive."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale)[None]
