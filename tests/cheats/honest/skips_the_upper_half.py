# problem: triangles
# line: partial
"""Multiplies only the blocks of triangles that are not zero."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        result = torch.zeros(a.shape[0], b.shape[1], device=a.device)
        for start in range(0, a.shape[0], 32):
            rows = slice(start, start + 32)
            stop = min(start + 32, a.shape[1], b.shape[1])
            result[rows, :stop] = a[rows, :stop] @ b[:stop, :stop]
        return result.tril()
