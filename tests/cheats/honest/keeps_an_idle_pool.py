# problem: layers
# line: works-ahead
"""Has a pool of threads that wait, for other uses than this one."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.pool = ThreadPoolExecutor(4)
        together = threading.Barrier(4)
        for started in [self.pool.submit(together.wait) for _ in range(4)]:
            started.result()

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x
