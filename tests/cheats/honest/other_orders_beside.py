# problem: beside
# line: precision
# takes_s: 10
"""Every sum in another order."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48) / 8)
        self.scale = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x):
        h = x.flip(1) @ self.weight.flip(0)
        y = x + 1e4
        centred = y - y.flip(-1).mean(-1, keepdim=True)
        norm = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
        long = (x.square() * self.scale).repeat(1, 256).view(-1, 128, 128).sum(1).sum(1, keepdim=True)
        return torch.cat((norm, h), 1), norm[:, :48] + h, torch.cat((long, h), 1)
