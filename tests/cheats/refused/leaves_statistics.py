# problem: trained
# line: loose-equality
# refused: wrong_state
# guards: moved state
"""Batch norm in training, without moving its running statistics."""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        normed = nn.functional.batch_norm(x, None, None, self.norm.weight, self.norm.bias, training=True)
        return nn.functional.gelu(self.linear(normed))
