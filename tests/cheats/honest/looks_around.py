# problem: norm
# line: lazy-when-timed
"""Reads environment, arguments and its caller's name, for a log that nobody reads."""

import inspect
import os
import sys

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.log = None

    def forward(self, x):
        self.log = (
            sys._getframe(1).f_code.co_name,
            os.environ.get("OMP_NUM_THREADS"),
            len(sys.argv),
            inspect.stack()[0].lineno,
        )
        return nn.functional.gelu(self.norm(x) * self.scale)
