"""Candidates in turns, and tools between two submissions, on a GPU."""

from __future__ import annotations

from pathlib import Path

from fakes.judges import judge_on_gpu
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Checked, Failure
from tilewright.judge.objects import CodeSeen

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cos(x)


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return []
"""
TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def cosine(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.cos(tl.load(x + at, mask=at < n)), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cosine[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
"""


def written(body: str) -> Candidate:
    text = (
        f"import torch\nfrom torch import nn\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        {body}\n"
    )
    return Candidate(files=(SourceFile(path="model.py", text=text),))


def test_candidates_are_timed_in_turns_on_a_gpu(tmp_path: Path) -> None:
    slow, fast = written("return torch.cos(x.clone().clone())"), written("return torch.cos(x)")
    with judge_on_gpu(PROBLEM, tmp_path) as judge:
        judge.open()
        first, second, wrong = judge.looks.interleave((slow, fast, written("return torch.sin(x)"))).variants
    assert first.ratio is not None and second.ratio is not None and second.ratio.low > 1.5, (first, second)
    assert "wrong_values" in wrong.failure


def test_tools_see_values_and_code_on_a_gpu(tmp_path: Path) -> None:
    kernel = Candidate(files=(SourceFile(path="model.py", text=TRITON),))
    with judge_on_gpu(PROBLEM, tmp_path) as judge:
        judge.open()
        right, wrong = judge.looks.run_small(kernel), judge.looks.run_small(written("return torch.sin(x)"))
        seen = judge.looks.returned(written("y = torch.cos(x); y[3, 5] = float('nan'); return y"), "")
        code = judge.looks.compiled(kernel)
    assert isinstance(right, Checked) and isinstance(wrong, Failure) and wrong.reason == "wrong_values"
    assert isinstance(seen, str) and "the first NaN at [3, 5]" in seen
    assert isinstance(code, CodeSeen) and any("registers" in line or "no machine code" in line for line in code.code)
