# problem: norm
# line: resubmits
# targets: cpu
"""Reads its constants from a memory-mapped file of its own."""

import mmap

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        with open("table.bin", "wb") as file:
            file.write(bytearray(torch.tensor([0.5]).sqrt().numpy().tobytes()))
        with open("table.bin", "r+b") as file:
            self.table = torch.frombuffer(mmap.mmap(file.fileno(), 4), dtype=torch.float32)

    def forward(self, x):
        y = self.norm(x) * self.scale
        return 0.5 * y * (1 + torch.erf(y * self.table[0].to(x.device)))
