# problem: norm
# line: fig-leaf
# call_s: 150
# takes_s: 40
"""Compiled by torch itself."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        # Else inductor first compiles a test program for each instruction set, and headers: longer than all the rest.
        options = {"cpp.vec_isa_ok": True, "cpp_cache_precompile_headers": False}
        self.fast = torch.compile(self._compute, options=options)

    def forward(self, x):
        return self.fast(x)

    def _compute(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale)
