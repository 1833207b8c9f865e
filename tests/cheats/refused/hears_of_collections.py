# problem: norm
# line: deferred
# refused: tampering
# guards: none
"""Has the collector call it whenever it comes by, in the cell's own steps too."""

import gc

import torch
from torch import nn

gc.callbacks.append(lambda phase, found: None)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale)
