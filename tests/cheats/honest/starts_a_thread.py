# problem: norm
# line: deferred
"""Computes in a thread, and waits for it."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        with ThreadPoolExecutor(1) as pool, torch.no_grad():
            return pool.submit(self._compute, x).result()

    def _compute(self, x):
        with torch.no_grad():
            return nn.functional.gelu(self.norm(x) * self.scale)
