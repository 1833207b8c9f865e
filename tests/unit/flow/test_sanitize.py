"""A candidate under the sanitizer, with a program in its place that lets the candidate run and says what it is told."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tilewright.cell import values, wire
from tilewright.cell.arena import contiguous
from tilewright.cell.rerun import RECORDED
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Failure, Sanitized
from tilewright.facts.problem import Work
from tilewright.flow import sanitize
from tilewright.flow.sanitize import Job

MODEL = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.factor = factor

    def forward(self, x):
        assert self.weight.tolist() == [1.0, 2.0, 3.0], "the state was not loaded"
        assert x.tolist() == [4.0, 5.0, 6.0] and self.factor.item() == 2.0
        print("called")
        return x * self.weight * self.factor
"""
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
RACE = (
    "========= Error: Race reported between Write access at mine(float *)+0x150\n"
    "=========     and Read access at mine(float *)+0x1c0 [248 hazards]\n=========\n"
)


def program(folder: Path, **reports: str) -> Sequence[str]:
    path = folder / "sanitizer.py"
    path.write_text(f"REPORTS = {reports!r}\n{PROGRAM}")
    return [sys.executable, str(path)]


def job(folder: Path, text: str = MODEL) -> Job:
    tensors: list[torch.Tensor] = []
    init = values.encode([torch.tensor(2.0)], tensors)
    x = torch.tensor([4.0, 5.0, 6.0])
    given: list[torch.Tensor] = []
    args = values.encode([x], given)
    work = Work(bytes_read=12, bytes_written=12, matmul_flops=0, conv_flops=0, dtype="f32")

    described = wire.Described(
        init=init, init_tensors=(contiguous((), "f32"),), args=args, inputs=(contiguous((3,), "f32"),),
        outputs_tree="", outputs=(), state=(wire.NamedSpec(name="weight", spec=contiguous((3,), "f32")),),
        mutated_state=(), random=False, work=work, graph="", trace_failure="", call_s=0.0,
        gradients=wire.NO_GRADIENTS,
        longest_sum=1,
    )  # fmt: skip
    place = folder / "job"
    place.mkdir()
    torch.save({"init": tensors, "state": [torch.tensor([1.0, 2.0, 3.0])], "inputs": given}, place / RECORDED)
    candidate = Candidate(files=(SourceFile(path="model.py", text=text),))
    return Job(candidate=candidate, described=described, folder=place, seed=1, device="cpu")


@pytest.mark.slow
def test_a_candidate_without_errors_is_clean(tmp_path: Path) -> None:
    said: list[str] = []
    found = sanitize.sanitize(job(tmp_path), say=said.append, program=program(tmp_path))
    assert found == Sanitized(clean=("memcheck", "racecheck"), notes=()), said


@pytest.mark.slow
def test_an_error_in_its_own_kernel_refuses_it(tmp_path: Path) -> None:
    found = sanitize.sanitize(job(tmp_path), say=print, program=program(tmp_path, racecheck=RACE))
    assert isinstance(found, Failure)
    assert (found.reason, found.summary) == (
        "sanitizer",
        "racecheck: Race reported between Write access in mine(float *)",
    )


@pytest.mark.slow
def test_one_that_raises_there_is_not_refused_for_it(tmp_path: Path) -> None:
    text = MODEL.replace('print("called")', 'raise RuntimeError("not under a tool")')
    found = sanitize.sanitize(job(tmp_path, text), say=print, program=program(tmp_path))
    assert isinstance(found, Sanitized)
    assert found.clean == ()
    assert [note.partition(": ")[0] for note in found.notes] == [
        "memcheck did not get to the end", "racecheck did not get to the end",
    ]  # fmt: skip
    assert "not under a tool" in found.notes[0]


@pytest.mark.slow
def test_one_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitize, "LIMIT_S", 8.0)
    text = MODEL.replace('print("called")', "import time; time.sleep(600)")
    found = sanitize.sanitize(job(tmp_path, text), say=print, program=program(tmp_path))
    assert isinstance(found, Sanitized)
    assert found.notes == tuple(
        f"{tool} did not get to the end: it took more than 8 s" for tool in ("memcheck", "racecheck")
    )


def test_what_is_lacking_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = job(tmp_path).described
    assert sanitize.lack(described, "cpu") == "compute-sanitizer needs a GPU"
    monkeypatch.setattr(sanitize, "cuda_tool", lambda name: None)
    assert sanitize.lack(described, "cuda").startswith("compute-sanitizer was not found")
    monkeypatch.setattr(sanitize, "cuda_tool", lambda name: Path("/bin/true"))
    assert sanitize.lack(described, "cuda") == sanitize.absent("cuda") == ""
    assert sanitize.absent("cpu") == sanitize.lack(described, "cpu")
