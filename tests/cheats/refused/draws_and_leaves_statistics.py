# problem: dropout_norm
# line: loose-equality
# refused: wrong_state
# guards: moved state
"""Draws as it should, and does not move the running statistics beside that."""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.drop(nn.functional.batch_norm(x, None, None, self.norm.weight, self.norm.bias, True))
