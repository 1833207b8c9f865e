# problem: dropped_channels
# line: partial
# takes_s: 12
"""One number a channel, and the channel times that."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        kept = torch.rand(*x.shape[:2], 1, 1, device=x.device) < 0.7
        return torch.where(x > 0, 1.1 * x, 0.1 * x) * kept / 0.7
