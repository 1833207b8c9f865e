"""Whole runs on a CPU in which libraries, another package's realiser and torch.compile compete with skeletons."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.packages import EXAMPLE, installed
from tilewright.edges.problems import read_problem
from tilewright.facts.move import Try
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import INDUCTOR, inductor_mode, without_inductor
from tilewright.facts.run import Request, Timing
from tilewright.report import summary
from tilewright.report.story import story
from tilewright.run.optimize import Finished, optimize
from tilewright.run.places import Places

pytestmark = [pytest.mark.slow, pytest.mark.measured, pytest.mark.usefixtures("own_cache", "haste")]

PROBLEM = """
import math
import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, {parameters}):
{body}


def get_inputs():
    return [torch.randn{shape} for _ in range({count})]


def get_init_inputs():
    return []
"""
SDPA = "attention by torch's scaled_dot_product"
SIGNS = """
        for _ in range(6):
            x = torch.copysign(torch.copysign(x, y), z)
"""


def ran(
    folder: Path, body: str, parameters: str, shape: tuple[int, ...], *, compiled: bool = True, without: str = ""
) -> Finished:  # fmt: skip
    text = PROBLEM.format(body=body, parameters=parameters, shape=shape, count=parameters.count(",") + 1)
    (folder / "block.py").write_text(text)
    problem = read_problem(folder / "block.py", target="cpu")
    timing = Timing(budget_s=0.25, compiled=compiled)
    asked = Request(
        run="r", problem=problem, strategy="catalog", budget_s=900.0, seed=0, timing=timing,
        without=(without,) if without else (),
    )  # fmt: skip
    return optimize(asked, places=Places(out=folder / "run", cache=folder / "cache"), say=print)


def timed(done: Finished) -> Timed:
    found = [e.outcome for e in done.events if isinstance(e.move, Try) and e.move.what == done.stop.best]
    assert found and isinstance(found[-1], Timed)
    return found[-1]


@pytest.mark.thorough
def test_what_only_torch_compile_makes_faster_is_torch_compiles_own(tmp_path: Path) -> None:
    """No skeleton has a copysign: eager passes over the tensors twelve times, Inductor once."""
    done = ran(tmp_path, f"{SIGNS}        return x", "x, y, z", (512, 1024))
    assert isinstance(done.stop.best, tuple), done.stop.why
    assert [c.pattern for c in done.stop.best] == [INDUCTOR]
    beside, eager = timed(done).ratio("compile"), timed(done).ratio("eager")
    assert beside is not None and beside.high >= 1.0, "not behind torch.compile beyond noise"
    assert eager is not None and eager.low > 1.0
    shown = summary(done.context, done.events, candidate_dir="")
    assert shown["others"][0]["title"] == "the module as it is, by torch.compile" and shown["fallbacks"] == []


@pytest.mark.thorough
def test_skeletons_and_torch_compile_share_a_module_of_which_each_is_good_at_a_part(tmp_path: Path) -> None:
    """A loop over time is one kernel of ours, and would be unrolled by torch.compile; the signs are Inductor's."""
    loop = """
        state, states = x[:, 0], []
        for t in range(96):
            share = torch.sigmoid(y[:, t])
            state = (1 - share) * state + share * x[:, t]
            states.append(state)
        return torch.stack(states, dim=1)
"""
    done = ran(tmp_path, SIGNS + loop, "x, y, z", (32, 96, 512))
    assert isinstance(done.stop.best, tuple), done.stop.why
    assert inductor_mode(done.stop.best) == "default" and without_inductor(done.stop.best)
    beside = timed(done).ratio("compile")
    assert beside is None or beside.high >= 1.0
    alone = [
        e.outcome.ratio("eager")
        for e in done.events
        if isinstance(e.move, Try) and e.move.what == without_inductor(done.stop.best) and isinstance(e.outcome, Timed)
    ]
    eager = timed(done).ratio("eager")
    assert alone and alone[0] is not None and eager is not None and eager.low > alone[0].high


def attention(folder: Path, shape: tuple[int, ...]) -> Finished:
    body = "        return torch.softmax((x @ y.transpose(-2, -1)) * 0.125, -1) @ z"
    return ran(folder, body, "x, y, z", shape, compiled=False, without="tuning")


def by_the_library(done: Finished) -> list[object]:
    """What was tried of the library's attention, all of it judged right and timed."""
    found: list[object] = []
    for event in done.events:
        if not isinstance(event.move, Try) or not isinstance(event.move.what, tuple):
            continue
        if any(c.written is not None and c.written.title.startswith(SDPA) for c in event.move.what):
            assert isinstance(event.outcome, Timed), event.outcome
            found.append(event.move.what)
    return found


@pytest.mark.thorough
def test_catalog_tries_attention_by_the_library(tmp_path: Path) -> None:
    assert by_the_library(attention(tmp_path, (2, 4, 256, 64)))


@pytest.mark.thorough
def test_catalog_has_attention_by_the_library(tmp_path: Path) -> None:
    done = attention(tmp_path, (2, 8, 512, 64))
    assert done.stop.best in by_the_library(done), done.stop.why
    eager = timed(done).ratio("eager")
    assert eager is not None and eager.low > 1.0


def test_another_packages_realiser_is_tried_tuned_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its approximation is not accurate enough: the judge refuses that point, and takes the other. What is broken of
    another package is in the report, too."""
    installed(monkeypatch, tmp_path / "one", EXAMPLE, "gelu-realiser", "gelu = gelu_realiser:Gelu")
    installed(monkeypatch, tmp_path / "two", EXAMPLE, "broken", "it = absent:Library")
    body = "        return torch.i0(x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))))"
    done = ran(tmp_path, body, "x", (256, 1024), compiled=False)
    tries = [e for e in done.events if isinstance(e.move, Try) and isinstance(e.move.what, tuple)]
    theirs = [e for e in tries if any(c.written is not None for c in e.move.what)]
    assert theirs and all(isinstance(e.outcome, Timed) for e in theirs)
    assert {dict(c.point)["approximate"] for e in theirs for c in e.move.what if c.written} == {"none"}
    told = story(done.context, done.events)
    assert any("GELU by gelu-realiser" in attempt.what for attempt in told.attempts)
    assert any("realiser it of broken is skipped" in line for line in told.cases[0].unmatched)
