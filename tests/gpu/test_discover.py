"""Discover on a GPU: launches are hidden, and what operators take by themselves adds up to what the module takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.edges.gpu.machine import machine as measured_machine
from tilewright.facts.problem import Problem
from tilewright.judge.discover import discover

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

MODULE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(2048, 2048)

    def forward(self, x):
        return torch.softmax(torch.nn.functional.gelu(self.proj(x)) * 2.0, -1).cumsum(-1)

def get_inputs():
    return [torch.randn(8192, 2048)]

def get_init_inputs():
    return []
"""


def test_the_operators_make_up_the_module(tmp_path: Path) -> None:
    machine = measured_machine("cuda", cache_dir=tmp_path / "cache")
    problem = Problem(name="small", path="/nowhere/small.py", source=MODULE, target="cuda")
    found = discover(problem, machine=machine, seed=1, workdir=tmp_path, say=print)
    replay = found.replay
    assert replay.calls_ns == pytest.approx(replay.module_ns, rel=0.2), (
        "milliseconds: neither launches nor events count"
    )
    times = {c.call: c.ns for c in replay.calls}
    assert times["linear"] > times["mul"] > 0.5 * 2 * 8192 * 2048 * 4 / machine.copy_bytes_per_s * 1e9
    assert found.covered > 0.9 and found.parts[0].gain > 0
    assert all(p.floor_ns < 1.1 * p.ns for p in found.parts if p.pattern), "none of them fits into the L2 cache"
