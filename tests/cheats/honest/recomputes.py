# problem: trained
# line: wrong-gradient
# takes_s: 12
"""Keeps nothing of the forward and computes it again in the backward."""

from torch import nn
from torch.utils.checkpoint import checkpoint


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def _tail(self, x):
        return nn.functional.gelu(self.linear(x))

    def forward(self, x):
        return checkpoint(self._tail, self.norm(x), use_reentrant=False)
