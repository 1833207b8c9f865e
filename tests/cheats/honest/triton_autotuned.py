# problem: norm
# line: caches, sequence
# targets: cuda
"""A Triton kernel that is compiled and tuned in its first call."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune(configs=[triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 1024})], key=["count"])
@triton.jit
def _gelu(source, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + at, mask=at < count)
    tl.store(target + at, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=at < count)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = (self.norm(x) * self.scale).contiguous()
        out = torch.empty_like(y)
        _gelu[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](y, out, y.numel())
        return out
