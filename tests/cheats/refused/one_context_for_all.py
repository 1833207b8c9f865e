# problem: unnormed
# line: wrong-gradient
# refused: wrong_values
# guards: unlike steps
"""Keeps what its backward needs in one place: a second forward before it overwrites that."""

import torch
from torch import nn

LAST = {}


class Centre(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        LAST["y"] = torch.relu(x - x.mean(0))
        return LAST["y"]

    @staticmethod
    def backward(ctx, upstream):
        through = upstream * (LAST["y"] > 0)
        return through - through.mean(0)


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        y = Centre.apply(self.linear(x))
        return y, y.amax(-1)
