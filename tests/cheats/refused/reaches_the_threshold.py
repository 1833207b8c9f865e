# problem: binned
# line: partial
# refused: wrong_values
# guards: ties
"""Lets an element pass that is as large as the threshold, and no larger."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.register_buffer("edges", torch.randn(bins).sort().values)

    def forward(self, x):
        return torch.bucketize(x, self.edges), x >= 0.75
