"""The fact strategy on a CPU, whole: pieces on values like those in the module, composed, remembered, found again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.facts import realised
from tilewright.edges.gpu.machine import identity
from tilewright.edges.problems import read_problem
from tilewright.faces.patterns import known
from tilewright.facts.candidate import Candidate
from tilewright.facts.dialogue import ModelChoice
from tilewright.facts.move import Enter, Try, Within
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import Choice, subproblem_of
from tilewright.facts.run import Limits, Matched, Request, SearchContext, Timing
from tilewright.facts.winner import toolchain
from tilewright.run.ahead import Objects
from tilewright.run.evaluator import Evaluator
from tilewright.run.learning import Learning
from tilewright.run.opened import OpenedJudge
from tilewright.run.optimize import optimize
from tilewright.run.places import Places
from tilewright.run.realisations import known_of_module, known_of_subproblems, made_by
from tilewright.search.retrieve import store as table

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache", "haste")]

RATES: Any = {"copy_bytes_per_s": 1e10, "matmul_flops_per_s": (("f32", 1e11),)}
PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(256))

    def forward(self, x, mask):
        y = torch.i0(x) * self.gain
        for _ in range(3):
            y = y - 0.1 * y * y.abs() + 0.05
        return y.masked_fill(mask, 0.0)


def get_inputs():
    return [torch.randn(64, 256), torch.rand(64, 256) < 0.3]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.measured
def test_pieces_are_solved_composed_attributed_and_known_the_next_time(tmp_path: Path) -> None:
    """What is worth a look is decided by times, and where others are at work a piece may seem not to be."""
    (tmp_path / "block.py").write_text(PROBLEM)
    problem = read_problem(tmp_path / "block.py", target="cpu")
    places = Places(out=tmp_path / "run", cache=tmp_path / "cache")
    quick = Timing(budget_s=0.2, compiled=False)
    asked = Request(run="r", problem=problem, strategy="fact", budget_s=600.0, seed=0, timing=quick)
    done = optimize(asked, places=places, say=print)
    patterns = {p.id: p for p in done.context.matched[0].patterns}
    entered = {e.move.subproblem.name: e.outcome for e in done.events if isinstance(e.move, Enter)}
    assert len(patterns) == 1 and entered.keys() == patterns.keys()
    for name, inside in entered.items():
        assert isinstance(inside, SearchContext)
        classes = [p.same for p in inside.matched[0].patterns]
        assert classes == [patterns[name].same], "by itself it is the same pattern"
    tries = [e for e in done.events if isinstance(e.move, Within) and isinstance(e.move.move, Try)]
    assert len(tries) == 1 and all(isinstance(e.outcome, Timed) for e in tries)
    whole = [e.outcome for e in done.events if isinstance(e.move, Try)]
    assert whole and all(isinstance(outcome, Timed) for outcome in whole)
    listed = known("list", "", cache=tmp_path / "cache", say=print).object["realised"]
    assert all(e["trusted"] and e["error_share"] <= 1 for e in listed)

    context, folder = done.context, places.realised
    graph = context.cases[0].graph
    assert graph is not None
    here = {"machine": context.machine, "folder": folder}
    subproblems = tuple(
        known_of_subproblems(
            problem, graph, [*map(subproblem_of, context.matched[0].patterns)], context.spreads, **here
        )
    )
    whole_again = known_of_module(problem, context.machine, folder)
    assert len(subproblems) + len(whole_again) == len(listed) and (done.stop.best is None) == (not whole_again)
    assert all(k.doubt == "" for k in (*subproblems, *whole_again))

    request = Request(
        run="r", problem=problem, strategy="fact", seed=0, budget_s=60.0, timing=Timing(budget_s=0.2, compiled=False)
    )
    opened = OpenedJudge(request, places=places, say=print, machine=context.machine)
    learning = Learning(request, opened, places=places, say=print, objects=Objects())
    looked: Any = SimpleNamespace(discovery=SimpleNamespace(parts=context.parts))
    kinds = [document.kind for document in learning._notes(looked)]
    assert "note" in kinds and len(kinds) == kinds.count("note") + 2, "beside notes a model reads vetted examples"
    assert ("realised" in kinds) == bool(listed), "what was judged here among them"


def test_a_solved_module_is_neither_tuned_nor_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "block.py").write_text(PROBLEM)
    problem = read_problem(tmp_path / "block.py", target="cpu")
    places, machine = Places(out=tmp_path / "run", cache=tmp_path / "cache"), replace(identity("cpu"), **RATES)
    request = Request(
        run="r", problem=problem, strategy="fact", seed=0, budget_s=60.0, timing=Timing(budget_s=0.2, compiled=False)
    )
    settled: list[set[str]] = []

    def noted(matched: tuple[Matched, ...], *_: object, known: set[str], **__: object) -> tuple[Matched, ...]:
        settled.append(set(known))
        return matched

    monkeypatch.setattr("tilewright.run.learning.foreseen", noted)
    with Evaluator(request, places=places, say=print, machine=machine) as bench:
        first = bench.context(request)
        (pattern,) = first.matched[0].patterns
        what = (Choice(pattern=pattern.id, point=pattern.space.points[0]),)
        on = toolchain(machine, tilewright=made_by(what, "cpu"))
        entry = realised(key=problem.digest, problem=problem, what=what, device=machine.device, toolchain=on)
        table.remember(places.realised, entry)
        second = bench.context(request)
        without = bench.context(replace(request, without=("table",)))
    assert first.parts and settled[0] == set()
    assert [(k.name, k.doubt) for k in second.known] == [("", "")]
    assert second.parts == () and settled[1] == {pattern.id}, "nothing is measured, and no point compiled"
    assert without.parts and settled[2] == set()


COSINES = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        y = sum(torch.cos(x) for _ in range(24))
        return {result}


def get_inputs():
    return [torch.randn(64, 1024)]


def get_init_inputs():
    return []
"""
BY_HAND = """IDEA: twenty-four times one cosine
PREDICTION: 20x, one cosine for each element
FILE: model.py
```python
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.cos(x).mul_(24.0)
```
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.measured
def test_a_models_kernel_that_won_is_a_choice_of_the_next_module_that_computes_the_same(tmp_path: Path) -> None:
    (tmp_path / "reply.json").write_text(json.dumps([BY_HAND]))
    texts = {"cosines": "y", "larger": "torch.i0(y)"}
    for name, result in texts.items():
        (tmp_path / f"{name}.py").write_text(COSINES.replace("{result}", result))
    problems = {name: read_problem(tmp_path / f"{name}.py", target="cpu") for name in texts}
    quick = Timing(budget_s=0.2, compiled=False)
    asked = Request(
        run="r", problem=problems["cosines"], strategy="cutegen", seed=0, budget_s=600.0, timing=quick,
        without=("library",), limits=Limits(calls=1), model=ModelChoice(name=f"scripted:{tmp_path / 'reply.json'}"),
    )  # fmt: skip
    first = optimize(asked, places=Places(out=tmp_path / "first", cache=tmp_path / "cache"), say=print)
    assert isinstance(first.stop.best, Candidate), first.stop.why
    again = replace(asked, problem=problems["larger"], strategy="fact", without=(), model=None, limits=Limits())
    done = optimize(
        replace(again, budget_s=600.0), places=Places(out=tmp_path / "next", cache=tmp_path / "cache"), say=print
    )
    (kept,) = [k.realised.what for k in done.context.known if k.name]
    assert isinstance(kept, Candidate) and kept.by == "model"
    inside = [e.move.move for e in done.events if isinstance(e.move, Within) and isinstance(e.outcome, Timed)]
    assert kept in [m.what for m in inside if isinstance(m, Try)], "judged by itself"
    whole = [e.move.what for e in done.events if isinstance(e.move, Try)]
    parts = [c.written.candidate for what in whole if isinstance(what, tuple) for c in what if c.written]
    assert kept in parts, "and in its place"
