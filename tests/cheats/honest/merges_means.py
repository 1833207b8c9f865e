# problem: norm
# line: loose-equality
# takes_s: 12
"""Means merged of the last element of a row and of all others (Chan et al.), as compilers do with what fills no lane: a
large last element costs the mean many last bits."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        width, last, rest = x.shape[-1], x[..., -1:], x[..., :-1]
        others = rest.mean(-1, keepdim=True) if width > 1 else last
        apart, share = others - last, (width - 1) / width
        mean = last + apart * share
        squares = (rest - others).square().sum(-1, keepdim=True) + apart.square() * share
        y = (x - mean) * torch.rsqrt(squares / width + self.norm.eps)
        return nn.functional.gelu((y * self.norm.weight + self.norm.bias) * self.scale)
