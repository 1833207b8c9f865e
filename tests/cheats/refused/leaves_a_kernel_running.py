# problem: large_norm
# line: deferred
# refused: clock_disagrees
# guards: judge's clock
# targets: cuda
"""Returns while a kernel of its own still runs on another stream."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.side = torch.cuda.Stream()

    def forward(self, x):
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(4_000_000)
        return nn.functional.gelu(self.norm(x) * self.scale)
