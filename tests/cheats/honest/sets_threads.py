# problem: norm
# line: slow-baseline
"""Sets the number of threads that it likes best."""

import torch
from torch import nn

torch.set_num_threads(1)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale)
