"""benchmarks/regret.py: where a rule would have stopped on a run, and what that would have cost."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fakes.asked import asking, ran, sampled, whole
from tilewright.facts.run import Limits

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("regret", BENCHMARKS / "regret.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "regret", module)
    spec.loader.exec_module(module)
    return module


def test_a_rule_that_stops_early_is_told_what_it_missed(script: ModuleType, tmp_path: Path) -> None:
    replies = [whole("ns 500"), whole("bad hung"), whole("ns 900"), whole("ns 250")]
    _, events = ran(tmp_path / "a.db", "cutegen", replies, on=asking(limits=Limits(calls=4)), judge=sampled)
    way = script.way_of(events)
    assert [(at.best, at.unpaid) for at in way] == [(2.0, 0), (2.0, 1), (2.0, 2), (4.0, 0)]
    two = script.held_against("two", script.RULES["2 replies brought nothing"], [way])
    assert (two.fires, two.saved, two.regret, two.worst) == (1, 0.25, 2.0, 2.0)
    six = script.held_against("six", script.RULES["6 replies brought nothing"], [way])
    assert (six.fires, six.saved, six.regret) == (0, 0.0, 1.0)


def test_the_kept_runs_can_be_asked(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(map(str, (BENCHMARKS / "journals" / "cutegen").glob("*.xz")))
    monkeypatch.setattr(sys, "argv", ["regret.py", *files])
    script.main()
    said = capsys.readouterr().out
    assert "| 6 replies brought nothing |" in said and "replies in the median" in said
