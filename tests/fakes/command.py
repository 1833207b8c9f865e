"""The command line, and a small problem to give it."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from tilewright.faces.cli import app
from tilewright.faces.exits import exit_code

PROBLEM = """
import torch
from torch import nn

CASES = [{"rows": 128, "width": 1031}, {"rows": 3, "width": 17}]


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


def in_process(*args: object, cwd: Path | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, without a process of its own, whose start would take longer than most
    commands do."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd or "."), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code(lambda: app([str(arg) for arg in args], standalone_mode=False))
    return code, out.getvalue(), err.getvalue()


def tilewright(*args: object, cwd: Path, expect: int = 0) -> str:
    """What it printed on stdout; it must exit with `expect`. Its cache is what the fixture `own_cache` has made."""
    code, out, err = in_process(*args, cwd=cwd)
    assert code == expect, err
    return out
