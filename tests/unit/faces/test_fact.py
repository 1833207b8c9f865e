"""The fact strategy on a CPU, whole: pieces on values like those in the module, composed, remembered, found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.edges.ledger import Ledger
from tilewright.faces.patterns import known
from tilewright.facts.move import Enter, Event, Stop, Try, Within
from tilewright.facts.outcome import Timed
from tilewright.facts.run import Brief, Timing
from tilewright.flow.optimize import Finished, optimize
from tilewright.flow.workbench import Places
from tilewright.report import summary, table
from tilewright.stages.problems import read_problem

pytestmark = [pytest.mark.slow, pytest.mark.measured, pytest.mark.usefixtures("own_cache")]

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
        y = torch.i0(y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * self.gain)
        for _ in range(6):
            y = y - 0.01 * y * y.abs() + 0.05
        return torch.softmax((y * 0.5).masked_fill(mask, float("-inf")), -1)


def get_inputs():
    return [torch.randn(512, 256) * 3, torch.rand(512, 256) < 0.3]


def get_init_inputs():
    return []
"""


def run(tmp_path: Path, name: str) -> Finished:
    (tmp_path / "block.py").write_text(PROBLEM)
    return optimize(
        read_problem(tmp_path / "block.py", target="cpu"), places=Places(out=tmp_path / name, cache=tmp_path / "cache"),
        strategy="fact", budget_s=300.0, seed=0, say=print, sanitize=False, timing=Timing(budget_s=0.5, compiled=False),
    )  # fmt: skip


def moves(events: tuple[Event, ...]) -> list[type]:
    return [type(e.move.move) if isinstance(e.move, Within) else type(e.move) for e in events]


def test_pieces_are_solved_composed_attributed_and_known_the_next_time(tmp_path: Path) -> None:
    first = run(tmp_path, "first")
    assert first.stop.best is not None, first.stop.why
    entered = [e for e in first.events if isinstance(e.move, Enter)]
    insides = [e.outcome for e in entered if isinstance(e.outcome, Brief)]
    assert len(entered) == len(insides) == 2 == len(first.brief.matched[0].patterns)
    for event, inside in zip(entered, insides, strict=True):
        assert isinstance(event.move, Enter)
        here = {p.id: p.shape_class for p in first.brief.matched[0].patterns}[event.move.piece.name]
        assert [p.shape_class for p in inside.matched[0].patterns] == [here], "by itself it is the same pattern"
        assert (tmp_path / "first" / "pieces" / event.move.piece.name).is_dir()
    alone = [e.outcome for e in first.events if isinstance(e.move, Within) and isinstance(e.move.move, Try)]
    assert len(alone) == 2 and all(isinstance(outcome, Timed) for outcome in alone)
    told = summary(first.brief, first.events, candidate_dir="")["attribution"]
    assert isinstance(told, list) and all(w["alone"] and w["without"] and w["by"] == "skeleton" for w in told)
    assert table(first.brief, first.events).caption is not None
    listed = known("list", "", cache=tmp_path / "cache", say=print).object["realised"]
    assert len(listed) == 3 and all(e["trusted"] and e["error_share"] < 1 for e in listed)

    second = run(tmp_path, "second")
    assert moves(second.events) == [Try, Stop] and second.stop.best == first.stop.best
    assert not second.brief.parts and second.brief.known[0].doubt == ""
    with Ledger(tmp_path / "second" / "run.db", readonly=True) as ledger:
        assert ledger.events() == second.events
