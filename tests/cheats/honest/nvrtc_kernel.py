# problem: norm
# line: caches
# targets: cuda
"""A kernel in CUDA C++ that is compiled when it is first called."""

import torch
from torch import nn

SOURCE = """
extern "C" __global__ void gelu(const float* x, float* y, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}
"""


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.kernel = None

    def forward(self, x):
        if self.kernel is None:
            self.kernel = torch.cuda._compile_kernel(SOURCE, "gelu")
        y = (self.norm(x) * self.scale).contiguous()
        out = torch.empty_like(y)
        self.kernel(grid=((y.numel() + 255) // 256, 1, 1), block=(256, 1, 1), args=[y, out, y.numel()])
        return out
