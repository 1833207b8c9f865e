# problem: norm
# line: input-changed
# refused: input_modified
# guards: inputs compared, timed calls
"""Changes one element of its input by one unit in the last place."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = nn.functional.gelu(self.norm(x) * self.scale)
        x[7, 11] = torch.nextafter(x[7, 11], x[7, 11] + 1)
        return y
