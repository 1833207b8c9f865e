# problem: layers
# line: works-ahead
# takes_s: 30
"""Keeps large buffers as long as somebody has its result, and frees them when that goes."""

import weakref

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.buffers_of = {}

    def forward(self, x):
        kept = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            kept.append(x)
        result = x.clone()
        self.buffers_of[id(result)] = kept
        weakref.finalize(result, self.buffers_of.pop, id(result), None)
        return result
