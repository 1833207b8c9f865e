# problem: norm
# line: breaks-out
# refused: out_of_memory, hung
# guards: none
# targets: cpu
"""Takes memory that belongs to no process by itself: it is shared, though with nobody."""

import mmap

import torch
from torch import nn

_HELD = []


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        for _ in range(96):
            _HELD.append(mmap.mmap(-1, 64 << 20))
            _HELD[-1].write(bytes(64 << 20))
        return nn.functional.gelu(self.norm(x) * self.scale)
