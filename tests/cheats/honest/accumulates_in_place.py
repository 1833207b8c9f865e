# problem: trained
# line: wrong-gradient
"""Adds the gradient of the weight to .grad itself, as fused accumulation does."""

import torch
from torch import nn


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, holder):
        ctx.save_for_backward(x, weight)
        ctx.holder = holder
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, upstream):
        x, weight = ctx.saved_tensors
        own = upstream.T @ x
        holder = ctx.holder
        holder.grad = own if holder.grad is None else holder.grad.add_(own)
        return upstream @ weight, None, upstream.sum(0), None


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        return nn.functional.gelu(Linear.apply(self.norm(x), self.linear.weight, self.linear.bias, self.linear.weight))
