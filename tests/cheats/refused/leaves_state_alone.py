# problem: running
# line: loose-equality
# refused: wrong_state
# guards: moved state
"""Uses the running mean and does not move it."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))

    def forward(self, x):
        return x - torch.lerp(self.running_mean, x.mean(0), 0.1)
