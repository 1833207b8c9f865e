"""Profiles on a GPU: of a candidate under ncu, and of the same without counters, from launches and machine code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.edges.gpu.machine import machine
from tilewright.edges.problems import read_problem
from tilewright.edges.toolchain.installed import cuda_tool
from tilewright.facts.outcome import Inspected
from tilewright.facts.profile import KernelProfile
from tilewright.judge import look
from tilewright.judge import profiles as profiling
from tilewright.judge.build import load_candidate

ROOM = Path(__file__).parent / "sanitizer"
# torch's own kernels beside one of the candidate's: the profile must tell them apart.
CANDIDATE = (ROOM / "synchronises.py").read_text().replace("return y", "return y.mul(1.0)")
TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def sums(x, y, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    values = tl.load(x + row * WIDTH + tl.arange(0, WIDTH))
    tl.store(y + row, tl.sum(values * values, 0))

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], 1, device=x.device)
        sums[(x.shape[0],)](x, y, WIDTH=x.shape[1])
        return y
"""
pytestmark = pytest.mark.gpu


def seen(text: str, folder: Path) -> Inspected:
    (folder / "model.py").write_text(text)
    problem = read_problem(ROOM / "problem.py", target="cuda")
    found = look.profile(
        problem, load_candidate(folder / "model.py"), machine=machine("cuda", cache_dir=folder), question="auto",
        seed=1, say=print,
    )  # fmt: skip
    assert isinstance(found, Inspected), found
    assert found.diagnosis is not None
    print(*found.diagnosis.lines(4), sep="\n")
    return found


def kernel(found: Inspected, name: str) -> KernelProfile:
    assert found.diagnosis is not None
    return next(k for k in found.diagnosis.kernels if name in k.name)


@pytest.mark.slow
@pytest.mark.skipif(cuda_tool("ncu") is None, reason="ncu is not installed")
def test_counters_tell_kernels_apart(tmp_path: Path) -> None:
    found = seen(CANDIDATE, tmp_path)
    assert found.diagnosis is not None and found.diagnosis.notes == ()
    mine, torchs = kernel(found, "rows"), kernel(found, "elementwise")
    assert (mine.source, mine.origin, torchs.source, torchs.origin) == ("ncu", "own", "ncu", "torch")
    evidence = {m.name: m for m in mine.evidence}
    assert (evidence["threads a CTA"].value, evidence["CTAs"].value) == (256, 4096)
    read = evidence["read from DRAM"]
    assert read.unit == "byte" and 4096 * 256 * 4 <= read.value < 1.5 * 4096 * 256 * 4
    assert mine.stalls and abs(sum(m.value for m in mine.stalls) - 100) < 40
    longest = max(found.diagnosis.kernels, key=lambda k: k.ns)
    assert longest.hot and 0 < longest.hot[0].share <= 1 and longest.hot[0].why
    assert 1 <= len(found.diagnosis.changes) <= 3


@pytest.mark.slow
def test_without_counters_launches_and_code_are_the_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    tool = profiling.cuda_tool
    monkeypatch.setattr(profiling, "cuda_tool", lambda name: None if name == "ncu" else tool(name))
    found = seen(TRITON, tmp_path)
    assert found.diagnosis is not None
    assert found.diagnosis.notes == ("ncu was not found: it comes with the CUDA toolkit",)
    launched = next(k for k in found.diagnosis.kernels if k.source == "CUPTI")
    assert {m.name: m.value for m in launched.evidence}["CTAs"] == 4096
    code = next(k for k in found.diagnosis.kernels if k.source == "code")
    names = [m.name for m in code.evidence]
    assert code.name == "sums" and "registers a thread" in names
    if tool("nvdisasm") is not None:
        assert "instructions: global memory" in names and "instructions: floating point" in names
