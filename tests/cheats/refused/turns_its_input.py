# problem: norm
# line: input-changed
# refused: input_modified
# guards: moved inputs
"""Leaves its input with another shape: every value is where it was."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        rows = x.view(-1, x.shape[-1])
        if x.ndim == 2:
            x.unsqueeze_(0)
        return nn.functional.gelu(self.norm(rows) * self.scale)
