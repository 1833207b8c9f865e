"""Who keeps a GPU's memory from others, on a GPU of bookkeeping alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fakes.facts import PROBLEM, timed
from tilewright.facts.candidate import Candidate
from tilewright.facts.errors import HarnessError, UserError
from tilewright.facts.outcome import Failure, Timed
from tilewright.judge import evaluate, spares
from tilewright.judge.cells import Cells
from tilewright.judge.client import Cell, CellFault, CellLimits
from tilewright.judge.judgement import Hoarding
from tilewright.judge.memory import sizes as memory
from tilewright.judge.wire import messages as wire

TOTAL = 1000


class _Gpu:
    """A thousand bytes, of which others hold some, and a cell more: for good, or in torch's cache."""

    def __init__(self, others: int, kept: int, cached: int) -> None:
        self.others, self.kept, self.cached = others, kept, cached
        self.alive = True

    def info(self) -> tuple[int, int]:
        return TOTAL - self.others - self.kept - self.cached, TOTAL

    def do(self, request: object) -> None:
        assert isinstance(request, wire.Drop)
        if self.kept > 800:
            raise CellFault("hung", "no answer", source="candidate")
        self.cached = 0

    def kill(self) -> None:
        self.alive = False
        self.kept = self.cached = 0


@pytest.mark.parametrize(
    ("others", "kept", "cached", "hoarded", "alive"),
    [
        (100, 600, 200, 0, True), (100, 700, 199, 0, True), (100, 801, 0, 801, False), (600, 250, 100, 0, True),
        (600, 350, 0, 350, False),
    ],
)  # fmt: skip
def test_what_is_kept_shows_when_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, others: int, kept: int, cached: int, hoarded: int, alive: bool
) -> None:
    gpu = _Gpu(others, kept, cached)
    monkeypatch.setattr("torch.cuda.mem_get_info", gpu.info)
    assert memory.hoarded_bytes(cast("Cell", gpu), "cuda", found=TOTAL - others) == hoarded
    assert gpu.alive == alive
    assert memory.hoarded_bytes(cast("Cell", gpu), "cpu", found=TOTAL) == 0


def test_what_others_have_always_held_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = _Gpu(others=910, kept=60, cached=0)
    monkeypatch.setattr("torch.cuda.mem_get_info", gpu.info)
    assert memory.hoarded_bytes(cast("Cell", gpu), "cuda", found=TOTAL - 910) == 0 and gpu.alive


def test_a_full_gpu_is_not_booked_on_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = _Gpu(others=950, kept=10, cached=0)
    monkeypatch.setattr("torch.cuda.mem_get_info", gpu.info)
    monkeypatch.setattr(memory, "_GIVING_BACK_S", 0.0)
    with pytest.raises(HarnessError, match="other processes"):
        memory.hoarded_bytes(cast("Cell", gpu), "cuda", found=TOTAL)


@pytest.mark.parametrize(("accused", "evaluated", "refused"), [((True, False), 2, False), ((True, True), 2, True)])
def test_a_candidate_that_seems_to_keep_memory_is_judged_once_more(
    monkeypatch: pytest.MonkeyPatch, accused: tuple[bool, ...], evaluated: int, refused: bool
) -> None:
    """What another process gave back meanwhile looks alike, once."""
    kept = Failure(stage="check", reason="out_of_memory", summary="it keeps 62.7 GiB of the GPU's memory")
    left, said = list(accused), []

    def judged_once(self: object) -> Timed | Failure:
        if left.pop(0):
            raise Hoarding(kept.reason, kept.summary)
        return timed(2.0)

    monkeypatch.setattr(evaluate._Evaluation, "_judged_once", judged_once)
    opened: Any = SimpleNamespace(say=said.append)
    evaluation = evaluate._Evaluation(opened, Candidate(files=()), notes=(), compiled=(), foreign=False, vouched=False)
    assert (evaluation.run() == kept) == refused
    assert len(accused) - len(left) == evaluated and len(said) == 1


class _Starting:
    """A cell that comes up, or for which there is no memory, or which fails otherwise."""

    def __init__(self, why: str) -> None:
        self._why, self.alive, self.closed = why, True, False

    def wait_ready(self) -> None:
        if self._why:
            raise HarnessError(f"a cell did not start: {self._why}")

    def close(self) -> None:
        self.closed = True


def _cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whys: list[str]) -> tuple[Cells, list[Any]]:
    made: list[Any] = []

    def start(self: Cells, name: str, **_: object) -> Any:
        made.append(_Starting(whys[len(made)] if len(made) < len(whys) else ""))
        return made[-1]

    monkeypatch.setattr(Cells, "_start", start)
    monkeypatch.setattr(spares, "time", SimpleNamespace(monotonic=lambda: float(len(made)), sleep=lambda s: None))
    return Cells(PROBLEM, workdir=tmp_path, threads=1, limits=CellLimits(), say=print), made


def test_a_cell_for_which_there_was_no_memory_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, made = _cells(tmp_path, monkeypatch, ["CUDA error: out of memory"] * 3)
    found.spares.start()
    found.spares.settle()  # there is none then, and whoever is timed goes on
    assert found.spares.take() is made[3]
    assert [m.closed for m in made] == [True, True, True, False, False]


@pytest.mark.parametrize("why", ["CUDA error: out of memory", "no such device"])
def test_not_for_ever_and_not_for_another_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    found, made = _cells(tmp_path, monkeypatch, [why] * 1000)
    with pytest.raises(HarnessError, match=why):
        found.spares.take()
    assert len(made) == (1 if why == "no such device" else spares._MEMORY_LIMIT_S + 1)


def test_a_gpu_without_room_for_the_judge_itself_is_the_users_to_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> tuple[int, int]:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported elsewhere")

    monkeypatch.setattr("torch.cuda.mem_get_info", full)
    with pytest.raises(UserError, match="--jobs"):
        memory.available_bytes("cuda")

    def broken() -> tuple[int, int]:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr("torch.cuda.mem_get_info", broken)
    with pytest.raises(RuntimeError, match="unspecified"):
        memory.available_bytes("cuda")
