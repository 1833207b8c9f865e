# problem: clamp
# line: views
# refused: aliases_input
# guards: aliasing, held results, families
"""Gives a part of the input back, and a copy of the rest."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.as_strided(x, x.shape, x.stride(), x.storage_offset())
