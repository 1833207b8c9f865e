"""A second run, at another batch size of the same module, tunes less: what won at the first is its first point."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.facts.problem import Problem
from tilewright.facts.run import Request, SearchContext, Timing
from tilewright.run.evaluator import Evaluator
from tilewright.run.places import Places
from tilewright.run.tune import tune

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("haste")]

SOURCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(512)

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(x))


def get_inputs():
    return [torch.randn(ROWS, 512)]


def get_init_inputs():
    return []
"""


def problem(rows: int) -> Problem:
    return Problem(name="p", path="p.py", source=SOURCE.replace("ROWS", str(rows)), target="cpu")


def context(rows: int, *, out: Path, cache: Path) -> SearchContext:
    """What a run of `catalog` knows before its first move."""
    request = Request(
        run="r", problem=problem(rows), strategy="catalog", seed=0, budget_s=60.0, timing=Timing(compiled=False)
    )  # fmt: skip
    out.mkdir()
    with Evaluator(request, places=Places(out=out, cache=cache), say=print) as bench:
        return bench.context(request)


@pytest.mark.thorough
def test_a_run_at_another_batch_measures_few_points_and_the_winner_first(tmp_path: Path, known: Path) -> None:
    for name in ("cache", "empty"):
        shutil.copytree(known, tmp_path / name)
    tuned = tune(problem(64), cache=tmp_path / "cache", budget_s=60.0, seed=0, say=print)
    (winner,) = tuned.winners
    near = context(96, out=tmp_path / "near", cache=tmp_path / "cache")
    alone = context(96, out=tmp_path / "alone", cache=tmp_path / "empty")
    (pattern,), (other,) = near.matched[0].patterns, alone.matched[0].patterns
    assert [choice.point for choice in near.hinted] == [winner.point] and not near.remembered
    assert pattern.space.points[0] == winner.point and len(pattern.space.points) == 2 < len(other.space.points)
    assert replace(pattern, space=other.space) == other and not alone.hinted
