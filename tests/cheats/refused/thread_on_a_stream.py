# problem: large_norm
# line: deferred
# refused: clock_disagrees, wrong_values
# guards: none
# targets: cuda
"""A thread launches the work on its own stream after the call has returned."""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.pool = ThreadPoolExecutor(1)

    def forward(self, x):
        y = torch.empty_like(x)
        done = self.pool.submit(self._work, x, y)
        del done
        return y

    def _work(self, x, y):
        time.sleep(0.001)
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            y.copy_(nn.functional.gelu(self.norm(x) * self.scale))
