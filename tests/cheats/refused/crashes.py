# problem: norm
# line: breaks-out
# refused: crashed
# guards: none
"""Reads address zero."""

import ctypes

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        ctypes.string_at(0)
        return x
