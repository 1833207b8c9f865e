"""On a GPU: torch.compile's modes are timed in the same rounds, the fastest is the baseline, what takes minutes is
timed once; and a module for which torch.compile, or a CUDA graph, is best gets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.edges.gpu.machine import machine as measured_machine
from tilewright.facts.move import Event, Stop, Try
from tilewright.facts.outcome import Timed
from tilewright.facts.problem import Problem
from tilewright.facts.run import Request, Timing
from tilewright.run.evaluator import Evaluator, Places
from tilewright.search.strategies.catalog import catalog

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SMALL = """
import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(8)])

    def forward(self, x):
        for layer in self.layers:
            x = F.softmax(F.gelu(layer(x)), -1) + x
        return x


def get_inputs():
    return [torch.randn(32, 256)]


def get_init_inputs():
    return [256]
"""


def evaluator(folder: Path, modes: tuple[str, ...] = (), *, out: str = "run") -> Evaluator:
    problem = Problem(name="small", path="/nowhere/small.py", source=SMALL, target="cuda")
    request = Request(
        run="r", problem=problem, strategy="catalog", seed=0, budget_s=240.0,
        timing=Timing(budget_s=1.0, modes=modes), without=("tuning",),
    )  # fmt: skip
    machine = measured_machine("cuda", cache_dir=folder / "cache")
    return Evaluator(request, places=Places(out=folder / out, cache=folder / "cache"), say=print, machine=machine)


def test_a_launch_bound_module_is_not_behind_the_fastest_mode(tmp_path: Path) -> None:
    """The whole search: what it hands over against eager and the fastest of two modes."""
    with evaluator(tmp_path) as made:
        context = made.context(made.request)
        steps, seen = catalog(context), dict[object, Timed]()
        move = next(steps)
        while not isinstance(move, Stop):
            assert not isinstance(move, tuple)
            outcome = made.perform(context, move)
            if isinstance(move, Try) and isinstance(outcome, Timed):
                seen[move.what] = outcome
                print(move.why, outcome.ratios, outcome.compile_mode)
            move = steps.send(Event(seq=0, move=move, outcome=outcome, wall_s=1.0))
    assert move.best is not None, move.why
    best = seen[move.best]
    names = {name for name, _ in best.ratios}
    assert {"compile", "compile_warm"} <= names and any(name.startswith("compile:") for name in names)
    ratio, eager = best.ratio("compile"), best.ratio("eager")
    assert ratio is not None and ratio.high >= 0.97, best.ratios
    assert eager is not None and eager.low > 1.5, best.ratios


def test_what_takes_minutes_is_timed_once(tmp_path: Path) -> None:
    for remembered in (False, True):
        with evaluator(tmp_path, ("default", "max-autotune-no-cudagraphs"), out=str(remembered)) as made:
            found = made.perform(made.context(made.request), Try(what=(), why="the module as it is"))
        assert isinstance(found, Timed), found
        times, samples = ({n for n in names if n.startswith("compile") and not n.endswith("_warm")}
                          for names in (dict(found.times_ns), [s.name for s in found.samples]))  # fmt: skip
        assert len(times) == 2 and len(samples) == (1 if remembered else 2), (times, samples)
    assert (tmp_path / "cache" / "baselines.json").exists()
