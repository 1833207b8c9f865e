# problem: trained
# line: wrong-gradient
# refused: wrong_values
# guards: contents, redraw
"""The backward goes on using the inputs of the first call."""

import torch
from torch import nn

REMEMBERED = {}


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, upstream):
        x, weight = ctx.saved_tensors
        first = REMEMBERED.setdefault("x", x)
        return upstream @ weight, upstream.T @ first, upstream.sum(0)


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        return nn.functional.gelu(Linear.apply(self.norm(x), self.linear.weight, self.linear.bias))
