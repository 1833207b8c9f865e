# problem: peaks
# line: constant
# takes_s: 12
"""The mean is taken off first, and squares are summed in parts: another order, other last bits, the same peaks."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        parts = x.view(x.shape[0], -1, 128)
        h = x - parts.sum(1).sum(-1, keepdim=True) / x.shape[-1]
        variance = h.square().view_as(parts).sum(-1).sum(-1, keepdim=True) / x.shape[-1]
        return h * torch.rsqrt(variance + 1e-5) > 100
