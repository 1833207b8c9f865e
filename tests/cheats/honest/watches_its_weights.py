# problem: norm
# line: packed-once
"""Multiplies its weights together once, and again whenever torch says that one was written to."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.versions = None

    def forward(self, x):
        versions = tuple((p.data_ptr(), p._version) for p in self.parameters())
        if versions != self.versions:
            self.versions = versions
            with torch.no_grad():
                self.packed = self.norm.weight * self.scale, self.norm.bias * self.scale
        return nn.functional.gelu(nn.functional.layer_norm(x, x.shape[-1:]) * self.packed[0] + self.packed[1])
