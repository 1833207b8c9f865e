# problem: clamp
# line: views
"""The same values by minimum and maximum."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.minimum(torch.maximum(x, torch.tensor(-1e30)), torch.tensor(1e30))
