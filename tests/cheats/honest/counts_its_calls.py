# problem: counting
# line: loose-equality, lazy-when-timed
"""Counts its calls as the module does, before it computes."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls = 0

    def forward(self, x):
        self.calls = self.calls + 1
        y = torch.tanh(nn.functional.linear(x, self.linear.weight, self.linear.bias))
        return y + y / self.calls
