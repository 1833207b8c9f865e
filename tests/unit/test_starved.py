"""A machine that is too busy: what rests on times is tried again, and skipped with the reason; all else fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import starved

pytest_plugins = ["pytester"]
CONFTEST = (Path(__file__).parents[1] / "conftest.py").read_text()
TESTS = """
import pytest
from tilewright.facts import errors
tried = []

@pytest.mark.measured
def test_of_times():
    assert 0, "slower than it should be"

def test_of_values():
    tried.append(1)
    assert 0, "wrong"

@pytest.mark.measured
def test_judged():
    raise errors.TooBusy("others had 7 of 2 processors")

@pytest.mark.measured
def test_judged_by_another_process():
    assert "error: too busy to judge: others had 8 of 2 processors" == ""

@pytest.mark.measured
def test_once_more():
    tried.append(2)
    assert tried.count(2) > 2
"""


OF_THE_VERDICT = """
from tilewright.facts.errors import TooBusy

def test_a_verdict():
    raise TooBusy("others had it")
"""


@pytest.mark.parametrize("busy", [True, False])
def test_what_a_starved_machine_excuses(busy: bool, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starved, "starved", lambda: "work takes 9.0 times as long" if busy else "")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nmarkers =\n    measured\n    thorough\n    gpu\n    few\n")
    pytester.makepyfile(test_some=TESTS, test_verdict=OF_THE_VERDICT)
    done = pytester.runpytest_inprocess("-ra", "-p", "no:cacheprovider")
    wanted = {"passed": 1, "failed": 2 if busy else 3, "skipped": 3 if busy else 2, "rerun": 4}
    assert done.parseoutcomes() == wanted
    done.stdout.fnmatch_lines_random(["SKIPPED*others had 7 of 2 processors*", "SKIPPED*others had 8 of 2 processors*"])
    if busy:
        done.stdout.fnmatch_lines(["SKIPPED*work takes 9.0 times as long; it failed: slower than it should be*"])
    assert done.ret == pytest.ExitCode.TESTS_FAILED, "values are no matter of time"


def test_waiting_for_a_processor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    walls, spent = iter((0.0, 9.0)), iter((0.0, 0.5, 0.5))
    monkeypatch.setattr("time.perf_counter", lambda: next(walls))
    monkeypatch.setattr("time.thread_time", lambda: next(spent))
    assert starved.starved() == "work takes 18.0 times as long as processor time"
