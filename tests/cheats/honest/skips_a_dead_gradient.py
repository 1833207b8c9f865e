# problem: unnormed
# line: wrong-gradient
"""Leaves out the bias, whose gradient is nought by algebra; gives a jump's gradient to another of equal rank."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        y = (x - x.mean(0)) @ self.linear.weight.T
        y = torch.where(y >= 0, y, 0.0)
        return y, y.max(-1).values
