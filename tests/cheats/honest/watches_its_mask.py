# problem: masked
# line: packed-once
"""Turns its mask round once, and again whenever torch says that it was written to."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mask", torch.ones(width, width, dtype=torch.bool).tril())
        self.version = None

    def forward(self, x):
        version = self.mask.data_ptr(), self.mask._version
        if version != self.version:
            self.version = version
            self.hidden = ~self.mask
        return torch.softmax(x.masked_fill(self.hidden, float("-inf")), -1)
