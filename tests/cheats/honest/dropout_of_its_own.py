# problem: dropout
# line: partial
# takes_s: 15
"""Dropout by a generator and a seed of its own."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.source = None

    def forward(self, x):
        if self.source is None:
            self.source = torch.Generator(device=x.device)
            self.source.seed()
        mask = torch.rand(x.shape, generator=self.source, device=x.device) >= 0.2
        return x * (2.5 * mask)
