# problem: norm
# line: fig-leaf
# call_s: 150
"""Compiled by torch itself."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        # Else inductor compiles a test program for each instruction set first, which takes longer than all the rest.
        self.fast = torch.compile(self._compute, options={"cpp.vec_isa_ok": True})

    def forward(self, x):
        return self.fast(x)

    def _compute(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale)
