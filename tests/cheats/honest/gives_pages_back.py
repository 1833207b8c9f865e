# problem: layers
# line: lucky-timing
# targets: cpu
# takes_s: 15
"""Keeps its results in memory that it maps itself, and gives the pages of the one before back to the system."""

import ctypes
import mmap

import torch
from torch import nn

_LIBC = ctypes.CDLL(None)
_DONTNEED = 4


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.memory = None

    def forward(self, x):
        size = x.numel() * x.element_size()
        if self.memory is None or len(self.memory) < size:
            self.memory = mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        work = torch.frombuffer(self.memory, dtype=x.dtype)[: x.numel()].view(x.shape)
        for layer in self.layers:
            x = torch.tanh(layer(x), out=work) if not torch.is_grad_enabled() else torch.tanh(layer(x))
        result = x.clone()
        _LIBC.madvise(ctypes.c_void_p(work.data_ptr()), ctypes.c_size_t(len(self.memory)), _DONTNEED)
        return result
