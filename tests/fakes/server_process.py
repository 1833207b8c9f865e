"""A command of Tilewright that listens, as a process of its own: the first address that it says, until the context
ends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COSINES = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return sum(torch.cos(x) for _ in range(24))


def get_inputs():
    return [torch.randn({shape})]


def get_init_inputs():
    return []
"""
RIGHT = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.cos(x) * 24
"""
WRONG = RIGHT.replace("24", "25")


@contextmanager
def server_process(folder: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Of `tilewright ARGUMENTS ..` in this folder: the address, in whichever line it stands, and the process."""
    command = [sys.executable, "-m", "tilewright", *arguments]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stderr is not None
            said: list[str] = []
            for line in server.stderr:
                said.append(line)
                found = re.search(r"http://\S+", line)
                if found is not None:
                    break
            else:
                raise AssertionError("".join(said))
            yield found[0], server
        finally:
            server.terminate()
            server.communicate(timeout=300)
