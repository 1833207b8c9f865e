"""Candidates in turns, by a real judge: which is faster is told, what is wrong or dies is told of, the others go on."""

from __future__ import annotations

from pathlib import Path

from fakes.judges import context_judge
from tilewright.facts.candidate import Candidate, SourceFile

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cos(x)


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []
"""


def written(body: str) -> Candidate:
    head = "import os, torch\nfrom torch import nn\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
    text = f"{head}        {body}\n"
    return Candidate(files=(SourceFile(path="model.py", text=text),))


SLOW = written("return torch.cos(torch.cos(torch.cos(x)) * 0 + x) + 0 * torch.cos(x)")
FAST = written("return torch.cos(x)")
WRONG = written("return torch.sin(x)")
DYING = written("os._exit(3)")


def test_who_is_faster_is_told_and_what_is_wrong_or_dies_does_not_stop_the_others(tmp_path: Path) -> None:
    with context_judge(PROBLEM, tmp_path) as judge:
        judge.open()
        found = judge.looks.interleave((SLOW, FAST, WRONG, DYING)).variants
        alone = judge.looks.interleave((WRONG, FAST)).variants
    slow, fast, wrong, dying = found
    assert slow.ratio is not None and slow.ratio.mid == 1.0
    assert fast.ratio is not None and fast.ratio.low > 1.2 and fast.time_ns is not None and slow.time_ns is not None
    assert "wrong_values" in wrong.failure and wrong.time_ns is None
    assert dying.failure.startswith("crashed") and dying.ratio is None
    assert "wrong_values" in alone[0].failure and alone[1].time_ns is None
