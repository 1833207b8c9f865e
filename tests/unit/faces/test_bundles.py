"""The command line on two machines: a worker with a real judge, and a bench that goes a step further at each call."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from fakes.command import in_process
from fakes.facts import MACHINE, context, pattern, timed
from tilewright.edges.bundle import Bundle
from tilewright.edges.ledger import Ledger
from tilewright.facts.machine import Machine
from tilewright.facts.move import Move, Outcome
from tilewright.facts.outcome import Station, Timed
from tilewright.facts.run import Request, SearchContext
from tilewright.run import campaign
from tilewright.run.places import Places, Say
from tilewright.run.worker import Visit, Worker

SMALL = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.cos() + x.cos()


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
REPLY = """IDEA: once
FILE: model.py
```python
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return 2 * x.cos()
```
"""
ASIDE = ("--target", "cpu", "--strategy", "oneshot", "--timing", "0.2s", "--no-compile", "--no-wait")


def test_what_can_not_go_over_a_bundle_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(SMALL)
    for flags, said in (
        (("--evaluator", "bundle:box"), "what the other machine has is not known here; add --target cuda, or cpu"),
        (("--evaluator", "box", "--target", "cuda"), "--evaluator 'box': unknown; write bundle:DIR"),
    ):
        for command in (("optimize", "small.py"), ("mcp",)):
            code, out, err = in_process(*command, *flags)
            assert (code, out) == (2, "") and said in err
    assert [p.name for p in tmp_path.iterdir()] == ["small.py"]
    code, out, err = in_process("worker", "box", "--json")
    assert (code, out) == (2, "") and "box: no such folder" in err
    (tmp_path / "box").mkdir()
    assert json.loads(in_process("worker", "box", "--json")[1]) == {"answered": 0, "faults": 0, "left": 0}


@pytest.mark.slow
@pytest.mark.measured
@pytest.mark.usefixtures("own_cache")
def test_a_worker_opens_and_judges_a_problem_that_it_has_no_file_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "small.py").write_text(SMALL)
    (here / "replies.json").write_text(json.dumps([REPLY]))
    command = ("optimize", "small.py", "--out", "run", "--evaluator", "bundle:box", "--model", "scripted:replies.json")
    command += ASIDE
    with Worker(Bundle(there), cache=tmp_path / "cache", say=print) as worker:
        for expect in (75, 75, 0):
            assert in_process(*command)[0] == expect
            command = ("resume", "run", "--no-wait")
            shutil.copytree(here / "box" / "orders", there / "orders", dirs_exist_ok=True)
            assert worker.visit() == Visit(answered=expect // 75, faults=0, left=0)
            shutil.copytree(there / "answers", here / "box" / "answers", dirs_exist_ok=True)
    with Ledger(here / "run" / "run.db", readonly=True) as ledger:
        known, (_, judged, _) = ledger.context(), ledger.events()
    assert isinstance(judged.outcome, Timed), judged.outcome
    assert known is not None and known.problem.path == str(here / "small.py")
    assert known.cases[0].graph is not None and known.matched[0].patterns
    assert "small" in (here / "run" / "report.md").read_text()


class Judging:
    """Takes every candidate for twice as fast."""

    def __init__(self, request: Request, *, places: Places, say: Say, machine: Machine | None) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def held(self) -> tuple[Station, ...]:
        return (Station(name="timing", seconds=2.5),)

    def start_afresh(self) -> None: ...

    def context(self, request: Request) -> SearchContext:
        return replace(context(pattern("fused_0", points=1)), problem=request.problem)

    def perform(self, context: SearchContext, move: Move) -> Outcome:
        return timed(2.0)


def test_a_bench_takes_all_problems_a_step_further_at_each_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def child(command: Sequence[str], file: Path, *_: object, **__: object) -> dict[str, Any]:
        code, said, _ = in_process(*command[3:])
        return (
            json.loads(said) if code == 0 else {"problem": file.stem, "status": "pending" if code == 75 else "failed"}
        )

    monkeypatch.setattr(campaign, "_child", child)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    for name in ("1_a.py", "2_b.py"):
        (tmp_path / "set" / name).write_text(SMALL)
    flags = ("--model", "mailbox:post", "--evaluator", "bundle:box", "--out", "out", "--json", "found.json")
    ends = []
    for _ in range(4):
        code, *_ = in_process("bench", "set", *ASIDE, *flags)
        bundle = Bundle(tmp_path / "box")
        with Worker(bundle, cache=tmp_path, say=print, bench_of=Judging, machine_of=lambda target: MACHINE) as worker:
            ends.append((code, worker.visit().answered))
        letters = list((tmp_path / "post").glob("*.prompt.md"))
        for letter in letters:
            letter.with_name(letter.name.replace(".prompt", ".reply")).write_text(f"{REPLY}END OF REPLY\n")
    assert ends == [(75, 2), (75, 0), (75, 2), (0, 0)] and len(letters) == 2
    found = json.loads((tmp_path / "found.json").read_text())
    assert [task["status"] for task in found["tasks"]] == ["improved"] * 2
    assert found["machine"]["device"] == "test"  # the other's, not what is under this command
