"""Whose fault it is when the reference's cell fails."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from fakes.facts import MACHINE, PROBLEM
from tilewright.edges.sandbox.processes import started
from tilewright.facts.errors import HarnessError, UserError
from tilewright.judge.audits import audit
from tilewright.judge.cells import Cells, users_fault
from tilewright.judge.client import Cell, CellFault, CellLimits
from tilewright.judge.wire.messages import Gradients


@pytest.mark.parametrize(
    ("reason", "by_code", "kind"),
    [
        ("raised", True, UserError), ("out_of_memory", True, UserError), ("out_of_memory", False, UserError),
        ("crashed", True, HarnessError), ("broke_the_protocol", True, HarnessError),
        ("cell_error", False, HarnessError),
    ],
)  # fmt: skip
def test_whose_fault_it_is(reason: str, by_code: bool, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="what was said"), users_fault(PROBLEM):
        raise CellFault(reason, "what was said", source="reference", by_code=by_code)


def test_an_audit_without_memory_for_it_asks_for_a_smaller_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(self: Cells) -> Cell:
        raise CellFault("out_of_memory", "no memory is left", source="reference", by_code=False)

    monkeypatch.setattr(Cells, "open", without_memory)
    with pytest.raises(UserError, match="make the case smaller"):
        audit(PROBLEM, machine=MACHINE, seed=1, workdir=tmp_path, say=print)


class _Posted:
    """A cell that notes what it is asked."""

    alive = True

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.starts = ""

    def post(self, request: object) -> None:
        self.kinds.append(type(request).__name__)
        self.starts = getattr(request, "starts", "") if len(self.kinds) == 1 else self.starts

    do = post

    def collect(self, kind: type, *, limit_s: float) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("large", "at_first"), [(False, 3), (True, 1)])
def test_a_large_compiled_baseline_runs_when_it_is_waited_for(
    large: bool, at_first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside whoever has the device it only loads, and its compiler starts: its tensors would take memory that the
    others count on."""
    cell = _Posted()
    monkeypatch.setattr(Cells, "_start", lambda self, name, **_: cell)
    on_gpu = dataclasses.replace(PROBLEM, target="cuda")
    cells = Cells(on_gpu, workdir=tmp_path, threads=0, limits=CellLimits(), say=print)
    cells.baseline.warm(construct_seed=1, inputs_seed=2, gradients=Gradients(), large=large)
    assert cells.baseline.in_turn == large and len(cell.kinds) == at_first
    assert cell.starts == ("compiler" if large else "")
    cells.baseline.spare_memory()
    assert len(cell.kinds) == at_first, "it does not answer while it compiles"
    if large:
        cells.baseline.settle()
        assert len(cell.kinds) == at_first, "whoever has the lease waits for it, not a room"
    assert cells.baseline.compiled() == {"compile": cell}
    assert cell.kinds == ["LoadProblem", "ConstructCase", "Warm"]
    cells.baseline.spare_memory()
    assert cell.kinds[-2:] == ["Warm", "Drop"]


def test_at_the_end_of_a_turn_all_that_live_give_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that waits for its next turn, too: what its cell has cached is what others' case memories lack."""
    reference, guest, dead = _Posted(), _Posted(), _Posted()
    dead.alive = False
    monkeypatch.setattr(Cells, "_start", lambda self, name, **_: reference)
    for target, expected in (("cuda", ["Drop"]), ("cpu", [])):
        cells = Cells(
            dataclasses.replace(PROBLEM, target=target), workdir=tmp_path, threads=0, limits=CellLimits(), say=print
        )
        cells.open()
        for cell in (reference, guest):
            cell.kinds.clear()
        cells.spare_memory([reference, guest, dead])  # type: ignore[list-item]
        assert (reference.kinds, guest.kinds, dead.kinds) == (expected, expected, [])


def test_what_killed_judges_left_goes_and_what_living_ones_use_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that a living process has now was another's: in a container a killed run and the one that continues it
    may both be process 1."""
    monkeypatch.setattr(Cells, "_start", lambda self, name, **_: _Posted())
    dead = subprocess.Popen(["true"])
    dead.wait()
    ours, others = os.getpid(), os.getppid()
    stay = [f"cells-{others}-{started(others)}", "cells-of-mine", "0-folder"]
    go = [f"cells-{dead.pid}-77", f"cells-{ours}-77"]
    for name in (*stay, *go):
        (tmp_path / name / "0-reference").mkdir(parents=True)
    cells = Cells(PROBLEM, workdir=tmp_path, threads=0, limits=CellLimits(), say=print)
    cells.open()
    with cells.folder("tuning"):
        assert {path.name for path in tmp_path.iterdir()} == {*stay, f"cells-{ours}-{started(ours)}"}
    cells.close()
    assert {path.name for path in tmp_path.iterdir()} == set(stay)
