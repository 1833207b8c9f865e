# problem: binned
# line: partial
"""Counts the edges below each element, which is the place that a search among edges in order finds."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.register_buffer("edges", torch.randn(bins).sort().values)

    def forward(self, x):
        return (x.unsqueeze(-1) > self.edges).sum(-1), (x - 0.75) > 0
