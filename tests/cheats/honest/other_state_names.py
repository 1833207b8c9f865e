# problem: norm
# line: packed-once
"""Names its parameters otherwise; under equal seeds they are the same."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = nn.functional.layer_norm(x, x.shape[-1:], self.gain, self.shift)
        return nn.functional.gelu(y * self.scale)
