# problem: attention
# line: precision
# refused: wrong_values
# guards: truth
"""Gives rows that are masked as a whole the mean of all values, which is a number and no attention."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v, mask):
        scores = (q @ k.mT / 4).masked_fill(~mask, float("-inf"))
        return torch.where(mask.any(-1, keepdim=True), scores.softmax(-1) @ v, v.mean(-2, keepdim=True))
