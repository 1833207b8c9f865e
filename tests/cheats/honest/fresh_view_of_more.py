# problem: norm
# line: views
"""Returns a view into memory that it made larger than needed, for this call alone."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        space = torch.empty(x.numel() + 64, device=x.device)
        out = space[64:].view(x.shape)
        return out.copy_(nn.functional.gelu(self.norm(x) * self.scale))
