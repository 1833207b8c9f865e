# problem: matmul
# line: partial
"""A product made column block by column block, into memory of its own."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape[0], b.shape[1], device=a.device)
        for start in range(0, b.shape[1], 50):
            out[:, start : start + 50] = a @ b[:, start : start + 50]
        return out
