"""A kernel that a model wrote and won with realises the same computation in other modules, and competes there."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.asked import asking, at, judge, prompts, ran, text_of, whole
from fakes.composed import case, composed, load, matched, same
from fakes.facts import MACHINE, context, pattern, timed
from tilewright.faces.patterns import known
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import UserError
from tilewright.facts.move import Event, Move, Outcome, Stop, Try
from tilewright.facts.problem import Problem
from tilewright.facts.realised import Known, Realised
from tilewright.facts.run import CaseFacts, Limits, Request, SearchContext
from tilewright.run.kernels_kept import keep, kept_whole, kernels_kept, kernels_won, takes_kept
from tilewright.search.retrieve import store as table

__all__ = ["load"]

HEAD = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 2.0, 12))
        self.bias = nn.Parameter(torch.linspace(-1.0, 1.0, 12))

    def forward(self, x):
"""
TAIL = """
def get_init_inputs(): return [3]
def get_inputs(): return []
"""
SMALL = f"{HEAD}        return torch.softmax(torch.exp(x) * self.gain + self.bias, -1)\n{TAIL}"
LARGE = f"""{HEAD}        y = torch.softmax(torch.exp(x) * self.gain + self.bias, -1)
        return torch.i0(y.t()), torch.softmax(torch.exp(x * 0.5 - 1).cumsum(-1), -1)
{TAIL}"""
KERNEL = """
import sys
import torch
from beside import CALLED

class ModelNew(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        assert size == 3
        self.gain, self.bias = torch.nn.Parameter(torch.zeros(12)), torch.nn.Parameter(torch.zeros(12))

    def forward(self, x):
        sys.modules["kept_calls"].append(CALLED)
        return torch.softmax(torch.addcmul(self.bias, torch.exp(x), self.gain), -1)
"""
WRITTEN = Candidate(files=(SourceFile(path="model.py", text=KERNEL), SourceFile(path="beside.py", text="CALLED = 1\n")))


def problem(source: str) -> Problem:
    return Problem(name="small", path="/nowhere/small.py", source=source, target="cpu")


def run_of(source: str, given: CaseFacts, *, strategy: str = "cutegen") -> SearchContext:
    return replace(
        context(), problem=problem(source), cases=(given,), matched=matched([given]), strategy=strategy, model="someone"
    )


def won(ratio: float = 3.0, what: Candidate = WRITTEN) -> list[Realised]:
    of = run_of(SMALL, case(SMALL, (torch.randn(40, 12),)))
    events = (Event(seq=0, move=Try(what=what, why=""), outcome=timed(ratio), wall_s=1.0),)
    return list(kernels_won(of, events, Stop(best=what, why=""), journal=""))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for entry in won():
        assert keep(tmp_path / table.FOLDER, entry, MACHINE) == ""
    return tmp_path / table.FOLDER


def found_in(source: str, x: torch.Tensor, folder: Path) -> Any:
    cases = [case(source, (x,))]
    return cases, kernels_kept(problem(source), cases, matched(cases), machine=MACHINE, folder=folder)


@pytest.mark.parametrize("rows", [40, 24, 48])
def test_it_stands_in_a_larger_module_at_its_region_and_gives_what_torch_does(
    rows: int, folder: Path, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(rows, 12)
    cases, recipe = found_in(LARGE, x, folder)
    near = rows in (40, 24)  # 48 is more even than 40
    assert len(recipe) == near, "of the same shapes, or as many rows to the nearest power of two, as even"
    if not near:
        return
    (choice,) = recipe
    assert choice.written is not None and "by someone" in choice.written.title
    candidate = composed(LARGE, cases, recipe)
    calls: Any = []
    monkeypatch.setitem(sys.modules, "kept_calls", calls)
    module = load(candidate)
    new, old = module.ModelNew(3), module.Model(3)
    with torch.no_grad():
        same(new(x), old(x))
        new.gain.mul_(2.0)
        old.gain.mul_(2.0)
        same(new(x), old(x))  # its state is the module's own at each call
    assert calls == [1, 1], "it was called"


def test_the_same_module_has_it_whole_and_as_a_region(folder: Path) -> None:
    _, recipe = found_in(SMALL, torch.randn(40, 12), folder)
    assert len(recipe) == 1
    (whole,) = kept_whole(problem(SMALL), MACHINE, folder)
    assert (whole.name, whole.realised.what, whole.doubt) == ("", WRITTEN, "")
    (other,) = kept_whole(problem(SMALL), replace(MACHINE, torch="9"), folder)
    assert other.doubt
    assert not kept_whole(problem(SMALL), replace(MACHINE, device="another"), folder)
    assert not kept_whole(problem(LARGE), MACHINE, folder)


def test_what_computes_something_else_is_not_taken_for_it(folder: Path) -> None:
    for source in (SMALL.replace("+ self.bias", "- self.bias"), SMALL.replace(", -1)", ", 0)")):
        assert found_in(source, torch.randn(40, 12), folder)[1] == ()
    assert found_in(SMALL, torch.randn(40, 12).double(), folder)[1] == ()
    assert found_in(SMALL, torch.randn(12, 40).t(), folder)[1] == (), "as it lies in memory, too"


def test_only_what_a_model_wrote_and_torch_is_not_faster_than_is_kept() -> None:
    assert len(won()) >= 2 and {e.by for e in won()} == {"model"}
    assert [e.judged for e in won()] == [True, *[False] * (len(won()) - 1)], "the region was not judged by itself"
    assert won(0.8) == [] and won(what=replace(WRITTEN, language="library")) == []


def test_what_is_kept_gives_way_to_what_is_better_alone(tmp_path: Path) -> None:
    for ratio, kept in ((3.0, 3.0), (2.0, 3.0), (4.0, 4.0)):
        for entry in won(ratio):
            keep(tmp_path, entry, MACHINE)
        (whole,) = kept_whole(problem(SMALL), MACHINE, tmp_path)
        assert whole.realised.ratio.mid == kept


def test_who_takes_it() -> None:
    asked = Request(run="r", problem=problem(SMALL), strategy="catalog", seed=0, budget_s=1.0)
    assert all(takes_kept(replace(asked, strategy=s)) for s in ("catalog", "fact", "cutegen", "agent", "evolve"))
    assert not any(takes_kept(replace(asked, strategy=s)) for s in ("given", "tune", "oneshot", "cutegen_paper"))
    assert not takes_kept(replace(asked, without=("table",)))


BEFORE = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: 'ns 300'\n"),))


def knowing(strategy: str, *, without: tuple[str, ...] = ()) -> SearchContext:
    """A context of a run for whose problem BEFORE was handed over once."""
    before = Known(name="", realised=won(what=BEFORE)[0], doubt="")
    return replace(asking(limits=Limits(calls=4)), strategy=strategy, known=(before,), without=without)


@pytest.mark.parametrize("strategy", ["cutegen", "agent", "evolve"])
def test_a_model_begins_with_what_one_wrote_before_and_is_never_behind_it(strategy: str, tmp_path: Path) -> None:
    reply = whole("ns 600")
    stop, events = ran(tmp_path / "a.db", strategy, [reply] * 9, on=knowing(strategy))
    assert isinstance(events[0].move, Try) and events[0].move.what == BEFORE
    assert any("ns 300" in said for said in prompts(events)) and stop.best == BEFORE
    stop, _ = ran(tmp_path / "b.db", strategy, [whole("ns 100")] * 9, on=knowing(strategy))
    assert text_of(stop) == "class ModelNew: 'ns 100'\n"
    stop, events = ran(tmp_path / "c.db", strategy, [reply] * 9, on=knowing(strategy, without=("table",)))
    assert not any("ns 300" in said for said in prompts(events)) and text_of(stop) == "class ModelNew: 'ns 600'\n"


@pytest.mark.parametrize("strategy", ["catalog", "fact"])
def test_without_a_model_it_is_judged_again_and_handed_over_if_it_is_the_fastest(strategy: str, tmp_path: Path) -> None:
    patterned = replace(knowing(strategy), model="", matched=context(pattern("fused_0", points=1)).matched)
    skeleton: Any = {"ns": 500.0}

    def judged(move: Move) -> Outcome:
        assert isinstance(move, Try)
        return judge(move) if isinstance(move.what, Candidate) else at(skeleton["ns"])

    stop, events = ran(tmp_path / "a.db", strategy, [], on=patterned, judge=judged)
    assert stop.best == BEFORE and BEFORE in [e.move.what for e in events if isinstance(e.move, Try)]
    bare = replace(patterned, matched=context().matched)
    assert ran(tmp_path / "b.db", "catalog", [], on=bare, judge=judged)[0].best == BEFORE, "nothing else is there"
    skeleton["ns"] = 100.0
    stop, _ = ran(tmp_path / "c.db", "catalog", [], on=patterned, judge=judged)
    assert isinstance(stop.best, tuple)
    stop, events = ran(tmp_path / "d.db", strategy, [], on=replace(patterned, without=("table",)), judge=judged)
    assert BEFORE not in [e.move.what for e in events if isinstance(e.move, Try)] and isinstance(stop.best, tuple)


def test_patterns_lists_and_removes_it(folder: Path) -> None:
    cache = folder.parent
    listed = known("list", "", cache=cache, say=print).object["realised"]
    assert {e["by"] for e in listed} == {"model"} and len(listed) >= 2
    for entry in listed:
        (line,) = known("remove", entry["key"], cache=cache, say=print).drawn
        assert line.startswith("removed: ") and entry["key"] in line
    assert table.entries(folder) == ()
    with pytest.raises(UserError, match="no realisation has this key"):
        known("remove", listed[0]["key"], cache=cache, say=print)
