"""A candidate under the sanitizer, with a program in its place that lets the candidate run and says what it is told."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.jobs import MODEL, job
from tilewright.edges.gpu.machine import threads
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Failure, Sanitized
from tilewright.facts.problem import Problem
from tilewright.judge import sanitize
from tilewright.judge.evaluate import Judge, JudgeOptions

# Stands where compute-sanitizer does: options first, then the command, which it runs.
PROGRAM = """
import subprocess, sys
arguments = sys.argv[1:]
command = arguments[arguments.index(sys.executable):]
tool = arguments[arguments.index("--tool") + 1]
print("========= COMPUTE-SANITIZER", flush=True)
done = subprocess.run(command)
print(REPORTS.get(tool, "========= ERROR SUMMARY: 0 errors"))
sys.exit(done.returncode)
"""
BOTH = (sanitize.MEMCHECK, sanitize.RACECHECK)
RACE = (
    "========= Error: Race reported between Write access at mine(float *)+0x150\n"
    "=========     and Read access at mine(float *)+0x1c0 [248 hazards]\n=========\n"
)


def program(folder: Path, **reports: str) -> Sequence[str]:
    path = folder / "sanitizer.py"
    path.write_text(f"REPORTS = {reports!r}\n{PROGRAM}")
    return [sys.executable, str(path)]


@pytest.mark.slow
def test_a_candidate_without_errors_is_clean(tmp_path: Path) -> None:
    said: list[str] = []
    both = replace(job(tmp_path), tools=BOTH)
    found = sanitize.sanitize(both, say=said.append, program=program(tmp_path))
    assert found == Sanitized(clean=("memcheck", "racecheck"), notes=()), said


@pytest.mark.slow
def test_an_error_in_its_own_kernel_refuses_it(tmp_path: Path) -> None:
    raced = replace(job(tmp_path), tools=BOTH)
    found = sanitize.sanitize(raced, say=print, program=program(tmp_path, racecheck=RACE))
    assert isinstance(found, Failure)
    assert (found.reason, found.summary) == (
        "sanitizer",
        "racecheck: Race reported between Write access in mine(float *)",
    )


@pytest.mark.thorough
@pytest.mark.slow
def test_one_that_raises_there_is_not_refused_for_it(tmp_path: Path) -> None:
    text = MODEL.replace('print("called")', 'raise RuntimeError("not under a tool")')
    found = sanitize.sanitize(replace(job(tmp_path, text), tools=BOTH), say=print, program=program(tmp_path))
    assert isinstance(found, Sanitized)
    assert found.clean == ()
    assert [note.partition(": ")[0] for note in found.notes] == [
        "memcheck did not get to the end", "racecheck did not get to the end",
    ]  # fmt: skip
    assert "not under a tool" in found.notes[0]


@pytest.mark.few(0)
@pytest.mark.slow
@pytest.mark.parametrize(("environment", "clean"), [((("GAIN", "2"), ("PATH", "nowhere")), True), ((), False)])
def test_it_sees_the_variables_that_the_problem_reads(
    tmp_path: Path, environment: tuple[tuple[str, str], ...], clean: bool
) -> None:
    """Beside those of a cell, in whose place none of them comes."""
    text = f"import os\n\nassert os.environ['GAIN'] == '2' and os.environ['PATH'] != 'nowhere'\n{MODEL}"
    under_a_tool = sanitize.sanitize(job(tmp_path, text, environment), say=print, program=program(tmp_path))
    between_pages = sanitize.fenced(job(tmp_path / "again", text, environment), say=print)
    for found, tools in ((under_a_tool, ("memcheck",)), (between_pages, (sanitize.FENCE,))):
        assert isinstance(found, Sanitized) and found.clean == (tools if clean else ())


@pytest.mark.slow
def test_one_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MODEL.replace('print("called")', "import time; time.sleep(600)")
    slow = replace(job(tmp_path, text), tools=BOTH, limit_s=5.0)
    found = sanitize.sanitize(slow, say=print, program=program(tmp_path))
    assert isinstance(found, Sanitized)
    assert found.notes == tuple(
        f"{tool} did not get to the end: it took more than 5 s" for tool in ("memcheck", "racecheck")
    )


def test_tools_take_a_tenth_of_a_budget_or_nothing() -> None:
    assert [sanitize.limit_s(budget_s) for budget_s in (20.0, 60.0, 300.0, float("inf"))] == [0.0, 6.0, 30.0, 60.0]


def test_what_is_lacking_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = job(tmp_path).described
    assert sanitize.lack(described, "cpu") == ""  # guard pages are everywhere
    monkeypatch.setattr(sanitize, "cuda_tool", lambda name: None)
    assert sanitize.lack(described, "cuda").startswith("compute-sanitizer was not found")
    monkeypatch.setattr(sanitize, "cuda_tool", lambda name: Path("/bin/true"))
    assert sanitize.lack(described, "cuda") == sanitize.absent("cuda") == ""
    assert sanitize.absent("cpu") == "compute-sanitizer needs a GPU"


C_SUM = """
import ctypes, pathlib, subprocess, torch

SOURCE = "void k(float *x, float *w, float *y, long n) { for (long i = FIRST; i < n; ++i) y[WRITE] = x[i] * w[i]; }"

class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        folder = pathlib.Path(__file__).parent
        (folder / "k.c").write_text(SOURCE)
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", folder / "k.so", folder / "k.c"], check=True)
        self.kernel = ctypes.CDLL(str(folder / "k.so"))

    def forward(self, x):
        y = torch.empty(x.numel())
        self.kernel.k(*(ctypes.c_void_p(t.data_ptr()) for t in (x, self.weight, y)), ctypes.c_long(x.numel()))
        return y
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "write", "right"), [("0", "i", True), ("-1", "0", False), ("0", "i + 1", False)],
    ids=["right", "reads before", "writes behind"],
)  # fmt: skip
def test_on_a_cpu_guard_pages_find_what_is_out_of_bounds(tmp_path: Path, first: str, write: str, right: bool) -> None:
    found = sanitize.fenced(job(tmp_path, C_SUM.replace("FIRST", first).replace("WRITE", write)), say=print)
    assert found == Sanitized(clean=("guard pages",)) if right else isinstance(found, Failure), found
    assert right or (isinstance(found, Failure) and found.reason == "out_of_bounds")


GAIN = """
import os
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * float(os.environ["TILEWRIGHT_TEST_GAIN"])

def get_inputs():
    return [torch.randn(64)]

def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_the_judge_passes_on_what_the_problem_reads(tmp_path: Path) -> None:
    machine = Machine(
        target="cpu", device="any", driver="", torch="", dsl="", processors=threads(), cache_bytes=4096,
        copy_bytes_per_s=1e13, matmul_flops_per_s=(("f32", 1e16),),
    )  # fmt: skip
    problem = Problem(
        name="gain", path=str(tmp_path / "gain.py"), source=GAIN, target="cpu", mode="inference",
        environment=(("TILEWRIGHT_TEST_GAIN", "2"),),
    )  # fmt: skip
    candidate = Candidate(files=(SourceFile(path="model.py", text=GAIN.replace("Model(", "ModelNew(")),))
    with Judge(
        problem, machine=machine, seed=1, workdir=tmp_path, say=print, options=JudgeOptions(compile_baseline=False)
    ) as judge:
        judge.open()
        assert judge.sanitize(candidate) == Sanitized(clean=(sanitize.FENCE,), notes=())
