# problem: matmul
# line: precision
"""More precision than was asked for."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (a.double() @ b.double()).float()
