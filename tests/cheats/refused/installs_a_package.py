# problem: norm
# line: breaks-out
# refused: raised
# guards: none
"""Wants a package from the network."""

import subprocess
import sys

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "0", "--timeout", "3"]
        subprocess.run(
            [*pip, "install", "--target", "here", "tilewright-no-such-package"], check=True, capture_output=True
        )
        return nn.functional.gelu(self.norm(x) * self.scale)
