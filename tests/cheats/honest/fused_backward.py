# problem: trained
# line: wrong-gradient
"""A forward and a backward of its own, each in one."""

import torch
from torch import nn

_SCALE = 0.5**0.5
_DENSITY = 0.3989422804014327  # of the normal distribution at nought


class LinearGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        y = torch.addmm(bias, x, weight.T)
        ctx.save_for_backward(x, weight, y)
        return 0.5 * y * (1 + torch.erf(y * _SCALE))

    @staticmethod
    def backward(ctx, upstream):
        x, weight, y = ctx.saved_tensors
        inner = upstream * (0.5 * (1 + torch.erf(y * _SCALE)) + y * _DENSITY * torch.exp(-0.5 * y * y))
        return inner @ weight, inner.T @ x, inner.sum(0)


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        return LinearGelu.apply(self.norm(x), self.linear.weight, self.linear.bias)
