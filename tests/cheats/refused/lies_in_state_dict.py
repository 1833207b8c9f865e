# problem: norm
# line: packed-once
# refused: wrong_values
# guards: redraw
"""Shows copies of its parameters, so that nobody writes to those that it uses."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale)

    def state_dict(self, *args, **named):
        return {k: v.clone() for k, v in super().state_dict(*args, **named).items()}
