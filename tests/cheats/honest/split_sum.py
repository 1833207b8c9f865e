# problem: matmul
# line: precision
"""A product in two halves of its sum."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a[:, :200] @ b[:200] + a[:, 200:] @ b[200:]
