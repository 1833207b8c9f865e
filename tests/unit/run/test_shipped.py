"""From a file of winners to a run that needs no tuning, on the CPU: what is shipped is believed, and judged like all
else; and for how long the run held the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.facts import MACHINE as FAKE
from fakes.facts import OF_WINNERS, winner
from fakes.realisers import CPU
from tilewright.edges.gpu.machine import threads
from tilewright.edges.problems import read_problem
from tilewright.facts.move import Try
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import Choice
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts, Request, Timing
from tilewright.frontend.trace import trace
from tilewright.report import summary
from tilewright.run import opened
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import optimize
from tilewright.run.places import Places
from tilewright.search.tune.exchange import export

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def get_inputs():
    return [torch.randn(16, 257)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.usefixtures("haste")
def test_a_first_run_with_what_is_shipped_tunes_nothing_and_judges_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy.py").write_text(SOURCE)
    on = replace(FAKE, processors=threads(), copy_bytes_per_s=1e12)
    monkeypatch.setattr(opened, "measured_machine", lambda *_, **__: on)
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    case = CaseFacts(inputs=(), outputs=(), work=work, graph=trace(names["Model"](), tuple(names["get_inputs"]()), {}))
    ((pattern,),) = (matched.patterns for matched in found_patterns((case,), CPU))
    last = pattern.space.points[-1]
    known = winner(last, shape_class=pattern.shape_class, toolchain=OF_WINNERS)
    shipped = tmp_path / "package" / "shipped.db"
    export([known], shipped, add=True)

    places = Places(out=tmp_path / "run", cache=tmp_path / "cache", shipped=shipped)
    asked = Request(
        run="r", problem=read_problem(tmp_path / "toy.py", target="cpu"), strategy="catalog", budget_s=60.0, seed=0,
        timing=Timing(budget_s=0.2, compiled=False),
    )  # fmt: skip
    first = optimize(asked, places=places, say=lambda line: None)
    (judged, _) = first.events
    assert isinstance(judged.move, Try) and isinstance(judged.outcome, Timed), "what is believed is judged"
    assert judged.move.what == (Choice(pattern=pattern.id, point=last),), "and nothing is tuned"
    held = {s.name: s.seconds for s in judged.held}
    assert held.keys() >= {"case 0", "timing"} and "tuning" not in held and min(held.values()) > 0
    told = summary(first.context, first.events, candidate_dir="")["device_seconds"]
    assert isinstance(told, dict) and told["all"] == pytest.approx(sum(told["stations"].values()))
    assert 0 < told["stations"]["describing"] < told["all"] and held.items() <= told["stations"].items()
