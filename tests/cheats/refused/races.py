# problem: norm
# line: races
# refused: wrong_values
# guards: truth
"""Two threads add to one sum, and neither waits for the other."""

import threading
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        total = torch.zeros(x.shape[0], 1, device=x.device)
        half = x.shape[1] // 2

        def add(part):
            seen = total.clone()
            time.sleep(0.002)
            total.copy_(seen + part.sum(-1, keepdim=True))

        threads = [threading.Thread(target=add, args=(p,)) for p in (x[:, :half], x[:, half:])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        mean = total / x.shape[1]
        variance = (x - mean).square().mean(-1, keepdim=True)
        y = (x - mean) * torch.rsqrt(variance + self.norm.eps)
        return nn.functional.gelu((y * self.norm.weight + self.norm.bias) * self.scale)
