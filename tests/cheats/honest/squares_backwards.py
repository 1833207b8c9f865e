# problem: small_squares
# line: precision
"""The same sums from the end, in four parts: where a square lies next to the bound they differ in their last bits."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 8) / 512**0.5)

    def forward(self, x):
        x, weight = x.flip(1), self.weight.flip(0)
        return sum(x[:, i::4] @ weight[i::4] for i in range(4)).square() > 1e-6
