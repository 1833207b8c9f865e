# problem: trained
# line: wrong-gradient
# refused: wrong_values
# guards: precision
"""Exact forward; the gradient of the weight by a product of bf16."""

import torch
from torch import nn


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, upstream):
        x, weight = ctx.saved_tensors
        return upstream @ weight, (upstream.bfloat16().T @ x.bfloat16()).float(), upstream.sum(0)


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        return nn.functional.gelu(Linear.apply(self.norm(x), self.linear.weight, self.linear.bias))
