"""The fact strategy on a CPU, whole: pieces on values like those in the module, composed, remembered, found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.faces.patterns import known
from tilewright.facts.move import Enter, Try, Within
from tilewright.facts.outcome import Timed
from tilewright.facts.run import Brief, Request, Timing
from tilewright.flow.optimize import optimize
from tilewright.flow.workbench import Places, Workbench
from tilewright.stages.problems import read_problem

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(256))

    def forward(self, x, mask):
        y = x
        for _ in range(6):
            y = y - 0.1 * y * y.abs() + 0.05
        y = y * self.gain * torch.i0(y.mean(-1, keepdim=True))
        return torch.softmax((y * 0.5).masked_fill(mask, float("-inf")), -1)


def get_inputs():
    return [torch.randn(256, 256) * 3, torch.rand(256, 256) < 0.3]


def get_init_inputs():
    return []
"""


def test_pieces_are_solved_composed_attributed_and_known_the_next_time(tmp_path: Path) -> None:
    """How fast it is decides nothing here: others are at work, too."""
    (tmp_path / "block.py").write_text(PROBLEM)
    problem = read_problem(tmp_path / "block.py", target="cpu")
    places = Places(out=tmp_path / "run", cache=tmp_path / "cache")
    done = optimize(
        problem, places=places, strategy="fact", budget_s=600.0, seed=0, say=print, sanitize=False,
        timing=Timing(budget_s=0.2, compiled=False),
    )  # fmt: skip
    patterns = {p.id: p for p in done.brief.matched[0].patterns}
    entered = {e.move.piece.name: e.outcome for e in done.events if isinstance(e.move, Enter)}
    assert len(patterns) == 2 and entered.keys() == patterns.keys()
    for name, inside in entered.items():
        assert isinstance(inside, Brief)
        classes = [p.shape_class for p in inside.matched[0].patterns]
        assert classes == [patterns[name].shape_class], "by itself it is the same pattern"
    tries = [e for e in done.events if isinstance(e.move, Within) and isinstance(e.move.move, Try)]
    assert len(tries) == 2 and all(isinstance(e.outcome, Timed) for e in tries)
    whole = [e.outcome for e in done.events if isinstance(e.move, Try)]
    assert whole and all(isinstance(outcome, Timed) for outcome in whole)
    listed = known("list", "", cache=tmp_path / "cache", say=print).object["realised"]
    assert all(e["trusted"] and e["error_share"] <= 1 for e in listed)

    request = Request(run="r", problem=problem, strategy="fact", seed=0, budget_s=600.0)
    with Workbench(request, places=replace(places, out=tmp_path / "again"), say=print) as bench:
        again = bench.brief(request).known
    names = {k.name for k in again}
    assert len(again) == len(listed) if done.stop.best is None else names == {""}, "solved, or piece by piece"
    assert all(k.doubt == "" for k in again)
