# problem: norm
# line: packed-once
# targets: cpu
"""Builds its kernel when it is first called, and loads it from its folder ever after."""

import ctypes
import subprocess
from pathlib import Path

import torch
from torch import nn

SOURCE = """
#include <cmath>
extern "C" void gelu(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678118654752f));
}
"""


def _build():
    folder = Path.home() / "built"
    folder.mkdir(exist_ok=True)
    (folder / "gelu.cpp").write_text(SOURCE)
    library = folder / "gelu.so"
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", library, folder / "gelu.cpp"], check=True)
    return ctypes.CDLL(str(library)).gelu


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.kernel = None

    def forward(self, x):
        if self.kernel is None:
            self.kernel = _build()
        y = self.norm(x) * self.scale
        out = torch.empty_like(y)
        self.kernel(ctypes.c_void_p(y.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_long(y.numel()))
        return out
