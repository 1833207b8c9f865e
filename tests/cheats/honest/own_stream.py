# problem: large_norm
# line: deferred
# targets: cuda
"""Works on a stream of its own, which waits for the caller's and for which the caller's waits."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.side = torch.cuda.Stream()

    def forward(self, x):
        here = torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            y = nn.functional.gelu(self.norm(x) * self.scale)
        here.wait_stream(self.side)
        y.record_stream(here)
        return y
