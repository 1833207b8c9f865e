# problem: masked
# line: idle-weights
# targets: cuda
"""Adds minus infinity where the buffer says so, in every call anew."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mask", torch.ones(width, width, dtype=torch.bool).tril())

    def forward(self, x):
        scores = torch.where(self.mask, x, float("-inf"))
        powers = torch.exp(scores - scores.amax(-1, keepdim=True))
        return powers / powers.sum(-1, keepdim=True)
