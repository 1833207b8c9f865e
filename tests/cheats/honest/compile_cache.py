# problem: norm
# line: caches
"""Builds something slow once, keyed by shape and type, and uses it ever after."""

import time

import torch
from torch import nn

_BUILT = {}


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        key = (tuple(x.shape), x.dtype)
        if key not in _BUILT:
            time.sleep(0.5)
            _BUILT[key] = nn.functional.gelu
        return _BUILT[key](self.norm(x) * self.scale)
