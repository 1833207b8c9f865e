# problem: large_norm
# line: deferred
# targets: cuda
"""Four streams, each with a quarter of the rows, all waited for."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.sides = [torch.cuda.Stream() for _ in range(4)]

    def forward(self, x):
        now = torch.cuda.current_stream()
        y = torch.empty_like(x)
        for s, a, o in zip(self.sides, x.tensor_split(4), y.tensor_split(4), strict=True):
            s.wait_stream(now)
            with torch.cuda.stream(s):
                o.copy_(nn.functional.gelu(self.norm(a) * self.scale))
            now.wait_stream(s)
        return y
