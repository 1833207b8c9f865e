"""The judge on a GPU: arenas over IPC, gigabytes without the host, honest times, and what it must refuse there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tilewright.edges.gpu.machine import machine as measured_machine
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Failure, Inspected, Timed
from tilewright.facts.problem import Problem
from tilewright.judge.client import CellLimits
from tilewright.judge.evaluate import Judge, JudgeOptions
from tilewright.judge.memory import blocks, driver
from tilewright.judge.timing.measure import Effort

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(x)) * 2.0

def get_inputs(rows=ROWS, width=WIDTH):
    return [torch.rand(rows, width)]

def get_init_inputs(rows=ROWS, width=WIDTH):
    return [width]
"""
HEAD = "import torch\nfrom torch import nn\n"
CLASS = """
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
    def forward(self, x):
        BODY
"""
MATMUL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, a, b):
        return a @ b

def get_inputs():
    return [torch.randn(1024, 2048), torch.randn(2048, 1024)]

def get_init_inputs():
    return []
"""
EFFORT = Effort(tight=0.05, budget_s=2.0, min_rounds=4, max_rounds=20, verified=2)


def _problem(rows: int, width: int) -> str:
    return PROBLEM.replace("ROWS", str(rows)).replace("WIDTH", str(width))


def _candidate(body: str, head: str = HEAD, template: str = CLASS) -> Candidate:
    text = head + template.replace("BODY", body.replace("\n", "\n        "))
    return Candidate(files=(SourceFile(path="model.py", text=text),))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return measured_machine("cuda", cache_dir=tmp_path_factory.mktemp("machine"))


def _judge(source: str, machine: Machine, folder: Path, *, compile_baseline: bool = False) -> Judge:
    problem = Problem(name="p", path=str(folder / "p.py"), source=source, target="cuda")
    return Judge(
        problem, machine=machine, seed=1, workdir=folder, say=print,
        options=JudgeOptions(effort=EFFORT, limits=CellLimits(call_s=20.0), compile_baseline=compile_baseline),
    )  # fmt: skip


@pytest.fixture(scope="module")
def small(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with _judge(_problem(1000, 1031), machine, tmp_path_factory.mktemp("small")) as judge:
        judge.open()
        yield judge


def test_ipc_memory_goes_there_and_back() -> None:
    pointer = blocks.allocate(1 << 20)
    block = driver.as_tensor(pointer, 1 << 20)
    block.fill_(7)
    assert len(blocks.export(pointer)) == driver.HANDLE_BYTES
    assert int(block.sum(dtype=torch.int64)) == 7 << 20
    del block
    blocks.free(pointer)


def test_an_honest_candidate_passes(small: Judge) -> None:
    outcome = small.evaluate(_candidate("return torch.nn.functional.gelu(self.norm(x)).mul_(2.0)"))
    assert isinstance(outcome, Timed), outcome
    assert "network namespace" in outcome.checked.built.protections or outcome.checked.built.missing_protections
    eager = outcome.ratio("eager")
    assert eager is not None and eager.high > 0.9
    assert outcome.checked.worst_error is not None and outcome.checked.worst_error.share <= 1.0


@pytest.mark.parametrize(
    ("body", "head", "reasons"),
    [
        ("return torch.nn.functional.gelu(self.norm(x))", HEAD, {"wrong_values"}),
        ("return torch.nn.functional.gelu(self.norm(x.half()).float()) * 2", HEAD, {"raised", "wrong_values"}),
        ("x.add_(0.0).copy_(self.norm(x))\nreturn torch.nn.functional.gelu(x) * 2", HEAD, {"input_modified"}),
        ("y = torch.empty_like(x)\ny[:, :1000] = (torch.nn.functional.gelu(self.norm(x)) * 2)[:, :1000]\nreturn y",
         HEAD, {"wrong_values"}),
        ("return (torch.nn.functional.gelu(self.norm(x)) * 2).cpu()", HEAD, {"wrong_device"}),
        ("torch.cuda._sleep(10**12)\ntorch.cuda.synchronize()\nreturn x", HEAD, {"hung"}),
        ("torch.empty(1 << 42, device='cuda')\nreturn x", HEAD, {"out_of_memory"}),
    ],
)  # fmt: skip
def test_refused(small: Judge, body: str, head: str, reasons: set[str]) -> None:
    outcome = small.evaluate(_candidate(body, head))
    assert isinstance(outcome, Failure) and outcome.reason in reasons, outcome


def test_work_on_a_side_stream_does_not_hide_from_the_clock(machine: Machine, tmp_path: Path) -> None:
    """Results are right in the end, but events on the default stream see nothing of the work."""
    body = """
if not hasattr(self, "side"):
    self.side = torch.cuda.Stream()
with torch.cuda.stream(self.side):
    return torch.nn.functional.gelu(self.norm(x)) * 2.0
"""
    with _judge(_problem(65536, 1024), machine, tmp_path) as judge:
        judge.open()
        outcome = judge.evaluate(_candidate(body.strip()))
    assert isinstance(outcome, Failure) and outcome.reason in {"clock_disagrees", "wrong_values", "implausible"}, (
        outcome
    )


def test_tf32_is_no_fp32(machine: Machine, tmp_path: Path) -> None:
    template = "\nclass ModelNew(nn.Module):\n    def forward(self, a, b):\n        BODY\n"
    tf32 = "torch.backends.cuda.matmul.allow_tf32 = True\nreturn a @ b"
    with _judge(MATMUL, machine, tmp_path) as judge:
        judge.open()
        refused = judge.evaluate(_candidate(tf32, template=template))
        passed = judge.evaluate(_candidate("return (b.T @ a.T).T.contiguous()", template=template))
    assert isinstance(refused, Failure) and refused.reason == "wrong_values", refused
    assert isinstance(passed, Timed), passed


@pytest.mark.alone
def test_gigabytes_take_seconds(machine: Machine, tmp_path: Path) -> None:
    with _judge(_problem(262144, 8192), machine, tmp_path, compile_baseline=True) as judge:  # 8.6 GB in, 8.6 GB out
        facts = judge.open()
        assert facts[0].work.bytes_read >= 8 << 30
        judge.opened.cells.baseline.compiled()  # its compilation is no part of what is measured here
        started = time.monotonic()
        outcome = judge.evaluate(_candidate("return torch.nn.functional.gelu(self.norm(x)).mul_(2.0)"))
        seconds = time.monotonic() - started
    assert isinstance(outcome, Timed), outcome
    assert outcome.ratio("compile") is not None
    assert outcome.checked.notes == () or "no float64 truth" not in " ".join(outcome.checked.notes)
    assert seconds < 30, f"{seconds:.1f} s"


def test_a_profile_names_the_kernels_of_the_module_and_of_a_candidate(small: Judge) -> None:
    eager = small.inspect(None)
    assert isinstance(eager, Inspected)
    names = " ".join(n.name for n in eager.longest).lower().replace("_", "")
    assert "layernorm" in names and "gelu" in names, names
    assert eager.launches is not None and eager.launches.count >= 3 and eager.ns > 0
    mine = small.inspect(_candidate("return torch.nn.functional.gelu(self.norm(x)) + 0.0"))
    assert isinstance(mine, Inspected) and mine.launches is not None and mine.launches.count >= 3
    wrong = small.inspect(_candidate("raise ValueError('no')"))
    assert isinstance(wrong, Failure) and "no" in wrong.summary
