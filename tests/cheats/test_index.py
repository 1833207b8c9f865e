"""The index of cheats in docs/threats.md and the heads of its exhibits tell the same story."""

from __future__ import annotations

import re
from pathlib import Path

from guards import GUARDS
from museum import HERE, NOTHING, ROOMS, _without, classes, exhibits, of_every_run

THREATS = (Path(__file__).parents[2] / "docs" / "threats.md").read_text()
INDEX = THREATS.partition("## Index of cheats")[2].partition("\n## ")[0]
LINES = dict(re.findall(r"^\| `([a-z-]+)` \| (.+?) \|", INDEX, re.MULTILINE))
REASONS = set(re.findall(r"`([a-z_]+)`", THREATS))
ELSEWHERE = re.findall(r"^\| `([a-z-]+)` .*`(tests/[a-z_/]+\.py)`", INDEX, re.MULTILINE)


def test_every_line_has_an_exhibit() -> None:
    shown = {line for e in exhibits() for line in e.lines}
    elsewhere = {line for line, path in ELSEWHERE if (HERE.parents[1] / path).is_file()}
    assert len(LINES) > 30
    assert set(LINES) - shown - elsewhere == set()


def test_every_line_that_is_a_cheat_has_a_cheat() -> None:
    cheats = {line for e in exhibits() if e.memory == "refused" for line in e.lines}
    only_honest = {"absurd-baseline", "fig-leaf", "lucky-timing", "resubmits", "slow-baseline"}  # the report tells
    elsewhere = {line for line, _ in ELSEWHERE}
    assert set(LINES) - cheats - elsewhere <= only_honest


def test_every_exhibit_stands_for_a_line_of_the_index() -> None:
    assert {e.name: e.lines for e in exhibits() if not e.lines or set(e.lines) - set(LINES)} == {}


def test_every_reason_is_explained() -> None:
    assert {e.name: e.reasons for e in exhibits() if set(e.reasons) - REASONS} == {}


def test_every_cheat_names_reasons_and_guards() -> None:
    cheats = [e for e in exhibits() if e.memory == "refused"]
    assert [e.name for e in cheats if not e.reasons or not e.guards or set(e.guards) - set(GUARDS) - {NOTHING}] == []
    assert [e.name for e in exhibits() if e.memory == "honest" and (e.reasons or e.guards)] == []


def test_every_guard_is_proved_by_a_cheat() -> None:
    named = {g for e in exhibits() for g in e.guards}
    assert set(GUARDS) - named == set()


def test_every_exhibit_runs_somewhere_and_names_its_problem() -> None:
    assert [e.name for e in exhibits() if not e.targets or set(e.targets) - {"cpu", "cuda"}] == []
    assert [e.name for e in exhibits() if not (HERE / "problems" / f"{e.problem}.py").is_file()] == []
    assert sum(e.memory == "honest" for e in exhibits("cpu")) >= 15
    assert {p.parent.name for p in HERE.glob("*/*.py")} - {"problems"} == set(ROOMS)


def test_every_run_has_an_exhibit_of_each_class_and_no_more_than_that_takes() -> None:
    for target in ("cpu", "cuda"):
        found = exhibits(target)
        often = of_every_run(found)
        each = classes(found)
        assert set().union(*each.values()) == set().union(*(each[name] for name in often))
        assert len(often) < len(found) / 2, "all are judged by `make museum`"


def test_records_hold_no_paths_of_this_machine() -> None:
    said = "Permission denied: '/any/where/src/tilewright/judge/check/metric.py', at /out/cells-1/x"
    told = _without((("/out", "OUT"),), said)
    assert told == "Permission denied: 'REPO/src/tilewright/judge/check/metric.py', at OUT/cells-1/x"
