# problem: norm
# line: resubmits, edits-judge
"""Uses a package where it is installed, and does without it where it is not."""

import importlib
import importlib.util

import numpy
import torch
from torch import nn

importlib.invalidate_caches()
WITH_IT = importlib.util.find_spec("tilewright") is not None
try:
    import tilewright
except ImportError:
    tilewright = None
if WITH_IT or tilewright is not None:
    raise RuntimeError("it was found where nobody needs it")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.power = float(numpy.sqrt(4.0)) - 1.0

    def forward(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale**self.power)
