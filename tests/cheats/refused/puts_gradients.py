# problem: unnormed
# line: wrong-gradient
# refused: wrong_values
# guards: unlike steps
"""Puts the gradient of its weight where it should be added to what is there."""

import torch
from torch import nn


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, module):
        ctx.save_for_backward(x, weight)
        ctx.module = module
        return x @ weight.T

    @staticmethod
    def backward(ctx, upstream):
        x, weight = ctx.saved_tensors
        ctx.module.weight.grad = upstream.T @ x
        return upstream @ weight, None, None


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        y = Linear.apply(x, self.linear.weight, self.linear) + self.linear.bias
        y = torch.relu(y - y.mean(0))
        return y, y.amax(-1)
