# problem: several
# line: loose-equality
# refused: wrong_dtype
# guards: exact dtype
"""Indices in 32 bits where the reference has 64."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = x.max(-1)
        return {"top": (values, places.to(torch.int32)), "positive": (x > 0).sum(-1)}
