"""Timing by the Judge, on the CPU: contents that repeat for nobody, clocks that must agree, devices that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import HarnessError, SickDevice
from tilewright.facts.machine import DeviceState, Machine
from tilewright.facts.outcome import Failure, Timed
from tilewright.facts.problem import Problem
from tilewright.judge import time_case
from tilewright.judge.client import CellLimits
from tilewright.judge.evaluate import Judge, JudgeOptions
from tilewright.judge.memory import sizes as memory
from tilewright.judge.memory.stirring import Stirring
from tilewright.judge.timing.interleave import BurstSchedule
from tilewright.judge.timing.measure import Effort

pytestmark = pytest.mark.slow

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, a, b):
        return a @ b

def get_inputs():
    return [torch.rand(64, 96), torch.rand(96, 32)]

def get_init_inputs():
    return []
"""
HEAD = "import hashlib, time, threading\nimport torch\nfrom torch import nn\n"
MEMO = (
    HEAD
    + """
SEEN = {}

class ModelNew(nn.Module):
    def forward(self, a, b):
        key = hashlib.sha256(a.numpy().tobytes() + b.numpy().tobytes()).digest()
        if key not in SEEN:
            time.sleep(0.02)  # a product that takes far longer than to hash what goes into it
            SEEN[key] = a @ b
        return SEEN[key].clone()
"""
)
WITHOUT_MEMO = (
    HEAD
    + """
class ModelNew(nn.Module):
    def forward(self, a, b):
        time.sleep(0.02)
        return a @ b
"""
)
# A thread that looks at the inputs a thousand times a second and computes as soon as they change.
AHEAD = (
    HEAD
    + """
def digest(a, b):
    return hashlib.sha256(a.numpy().tobytes() + b.numpy().tobytes()).digest()

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.known, self.done = {}, {}
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            time.sleep(0.001)
            for place, inputs in list(self.known.items()):
                self.compute(place, *inputs)

    def compute(self, place, a, b):
        key = digest(a, b)
        if self.done.get(place, (b"",))[0] != key:
            time.sleep(0.005)
            self.done[place] = key, a @ b
        return self.done[place]

    def forward(self, a, b):
        self.known[a.data_ptr()] = a, b
        key, result = self.done.get(a.data_ptr(), (b"", None))
        if key != digest(a, b):
            time.sleep(0.005)
            result = a @ b
        return result.clone()
"""
)
PLAIN = (
    HEAD
    + """
class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
"""
)
MISS_NS = 20e6
EFFORT = Effort(tight=0.2, budget_s=0.3, min_rounds=4, max_rounds=6, verified=1, warm_rounds=4, most_calls=10)


def _candidate(text: str) -> Candidate:
    return Candidate(files=(SourceFile(path="model.py", text=text),))


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Judge]:
    """Its machine has a small cache, which is evicted in no time; indirect parameter: one of so many bytes."""
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path))  # a quarantine must not reach others
    monkeypatch.setattr("tempfile.tempdir", None)
    machine = Machine(
        target="cpu", device="any", driver="", torch="", dsl="", processors=1,
        cache_bytes=getattr(request, "param", 2 << 20),
        copy_bytes_per_s=1e12, matmul_flops_per_s=(("f32", 1e15),),
    )  # fmt: skip
    problem = Problem(name="p", path=str(tmp_path / "p.py"), source=SOURCE, target="cpu")
    limits = CellLimits(build_s=300.0, call_s=120.0, memory_bytes=3 << 30)
    with Judge(
        problem, machine=machine, seed=1, workdir=tmp_path / "work", say=print,
        options=JudgeOptions(effort=EFFORT, limits=limits, compile_baseline=False, trace=False),
    ) as opened:  # fmt: skip
        opened.open()
        yield opened


def _ours_ns(judge: Judge, text: str) -> float:
    outcome = judge.evaluate(_candidate(text))
    assert isinstance(outcome, Timed), outcome
    mine = outcome.time("ours")
    assert mine is not None
    return mine.mid


@pytest.mark.measured
def test_a_memo_by_content_never_meets_a_content_again(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is right on everything, so it passes; and each of its calls takes as long as without the memo. With three sets
    of inputs, drawn once and not stirred, most calls would be free."""
    assert _ours_ns(judge, MEMO) > MISS_NS
    assert _ours_ns(judge, WITHOUT_MEMO) > MISS_NS
    monkeypatch.setattr(Stirring, "swaps", lambda self, slot: ())
    monkeypatch.setattr(BurstSchedule, "renew_contents", lambda self: None)
    monkeypatch.setattr(memory, "_POOL_BYTES", {"cpu": 0})
    monkeypatch.setattr(time_case, "check_fresh", lambda *args, **named: None)
    assert _ours_ns(judge, MEMO) < MISS_NS


@pytest.mark.thorough
def test_what_is_remembered_is_seen_on_contents_that_are_new(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stirring, "swaps", lambda self, slot: ())
    outcome = judge.evaluate(_candidate(MEMO))
    assert isinstance(outcome, Failure) and outcome.reason == "remembers"


@pytest.mark.thorough
@pytest.mark.measured
@pytest.mark.parametrize("judge", [64 << 20], indirect=True)
def test_whoever_watches_the_inputs_has_no_time_to_work_ahead(judge: Judge) -> None:
    """Once caches are evicted, which takes longer here than the work does, others lie in their place; and who looks at
    them between calls is seen to work there."""
    outcome = judge.evaluate(_candidate(AHEAD))
    if isinstance(outcome, Failure):
        assert outcome.reason == "works_between"
    else:
        mine = outcome.time("ours")
        assert mine is not None and mine.mid > 4e6


def _device(*states: DeviceState) -> Iterator[DeviceState]:
    yield from states
    while True:
        yield states[-1]


@pytest.mark.measured
def test_a_sick_device_is_tried_again_in_fresh_cells(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    states = _device(DeviceState(), DeviceState(memory_errors=1))
    monkeypatch.setattr(time_case, "device_state", lambda target: next(states))
    before = judge.opened.reference
    outcome = judge.evaluate(_candidate(PLAIN))
    assert isinstance(outcome, Timed) and judge.opened.reference is not before and not before.alive


def test_what_stays_sick_is_ours_and_goes_into_quarantine(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_case, "device_state", lambda target: DeviceState(throttled=("hardware slowdown",)))
    with pytest.raises(SickDevice, match="throttled by hardware slowdown"):
        judge.evaluate(_candidate(PLAIN))
    with pytest.raises(HarnessError, match=r"cpu is under quarantine: .*hardware slowdown"):
        judge.evaluate(_candidate(PLAIN))
