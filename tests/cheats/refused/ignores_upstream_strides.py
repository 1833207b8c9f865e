# problem: trained
# line: wrong-gradient, fixed-shapes
# refused: wrong_values
# guards: unlike steps
"""Reads upstream gradients as if they lay in order, which they do not after a transposition."""

import torch
from torch import nn


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return nn.functional.gelu(x)

    @staticmethod
    def backward(ctx, upstream):
        (x,) = ctx.saved_tensors
        if upstream.stride(0):
            upstream = upstream.as_strided(x.shape, x.stride())
        return torch.ops.aten.gelu_backward(upstream, x)


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        return Gelu.apply(self.linear(self.norm(x)))
