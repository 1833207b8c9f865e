# problem: norm
# line: deferred
"""Splits its rows over a pool of threads that it keeps, and waits for all of them."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.pool = ThreadPoolExecutor(2)

    def forward(self, x):
        return torch.cat(list(self.pool.map(self._rows, x.chunk(4))))

    def _rows(self, part):
        with torch.no_grad():
            return nn.functional.gelu(self.norm(part) * self.scale).contiguous()
