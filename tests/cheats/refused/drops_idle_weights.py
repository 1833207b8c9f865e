# problem: norm
# line: idle-weights
# refused: wrong_state, wrong_values
# guards: counterparts
"""Has no scale at all, since it starts at one."""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return nn.functional.gelu(self.norm(x))
