"""The command line as a user starts it, and a small problem to give it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROBLEM = """
import torch
from torch import nn

CASES = [{"rows": 512, "width": 1031}, {"rows": 3, "width": 17}]


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        z = x * torch.sigmoid(1.5 * x) + y
        for _ in range(4):  # many passes over memory for eager, one for us: no noise hides that
            z = z - 0.1 * z * z.abs() + 0.05 * y * y
        return z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6) * self.gain


def get_inputs(rows, width):
    return [torch.randn(rows, width), torch.randn(rows, width)]


def get_init_inputs(rows, width):
    return [width]
"""


def tilewright(*args: object, cwd: Path, expect: int = 0) -> str:
    """What it printed on stdout; it must exit with `expect`. Its cache is what the fixture `own_cache` has made."""
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", *map(str, args)],
        cwd=cwd, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == expect, done.stderr
    return done.stdout
