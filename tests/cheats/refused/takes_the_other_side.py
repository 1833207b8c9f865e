# problem: binned
# line: partial
# refused: wrong_values
# guards: ties
"""Puts an element that lies on an edge into the other bin."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.register_buffer("edges", torch.randn(bins).sort().values)

    def forward(self, x):
        return torch.bucketize(x, self.edges, right=True), x > 0.75
