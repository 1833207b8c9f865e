# problem: noisy
# line: precision
"""Another order of summation, and noise that is scaled as a whole."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48) / 8)
        self.scale = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x):
        h = x.flip(1) @ self.weight.flip(0)
        return (h + torch.randn(h.shape, dtype=h.dtype, device=h.device).mul_(0.005),)
