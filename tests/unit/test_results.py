"""benchmarks/results.py: compact files, one record a line; tasks judged anew take their old ones' place; before and after."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HELD = ROOT / "benchmarks" / "results" / "h200" / "kernelbench-level1.json"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def task(name: str, ratio: float, *, device: str = "H200", stage: str = "timing", stamp: str = "0.1.0 new") -> Any:
    span = {"low": ratio, "mid": ratio, "high": ratio}
    return {
        "problem": name, "status": "improved", "verdict": {"accepted": True, "stage": stage, "reason": ""},
        "ratio": {"eager": span, "compile": span}, "floor_share": 0.5, "machine": {"device": device}, "stamp": stamp,
    }  # fmt: skip


def result(*tasks: Any) -> Any:
    return {"tasks": list(tasks), "summary": {}, "command": "bench", "commit": "old", "machine": {"device": "H200"}}


def test_new_verdicts_take_the_place_of_old_ones(script: ModuleType) -> None:
    before = result(task("1_a", 1.0), task("2_b", 1.0), task("3_c", 1.0))
    broken = task("3_c", 9.0, stage="run")
    after = script.merged(before, [task("2_b", 4.0), broken, task("9_z", 1.0)], command="bench 2,9", note="cut off")
    assert [t["problem"] for t in after["tasks"]] == ["1_a", "2_b", "3_c", "9_z"]
    assert after["summary"]["geomean_eager"] == pytest.approx(4**0.25) and after["summary"]["tasks"] == 4
    assert [(r["command"], r["commit"], r["tasks"]) for r in after["runs"]] == [
        ("bench", "old", ["1_a", "3_c"]), ("bench 2,9", "new", ["2_b", "9_z"]),
    ]  # fmt: skip
    assert after["runs"][1]["note"] == "cut off" and "see `runs`" in after["command"]
    again = script.merged(
        after, [task(n, 2.0, stamp="0.1.0 last") for n in ("1_a", "2_b", "3_c", "9_z")], command="all"
    )
    assert (again["command"], again["commit"], len(again["runs"])) == ("all", "last", 1)


def test_another_machines_tasks_are_refused(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="another device"):
        script.merged(result(task("1_a", 1.0)), [task("1_a", 2.0, device="H100")], command="bench")
    with pytest.raises(ValueError, match="no stamp"):
        script.merged(result(task("1_a", 1.0)), [task("1_a", 2.0, stamp="")], command="bench")


def test_the_committed_file_says_which_run_made_each_task(script: ModuleType) -> None:
    """And its summary is that of its tasks."""
    held = json.loads(HELD.read_text())
    names = sorted(t["problem"] for t in held["tasks"])
    assert sorted(name for run in held.get("runs", [{"tasks": names}]) for name in run["tasks"]) == names
    summary = script.bench_summary(held["tasks"])
    assert held["summary"]["geomean_eager"] == pytest.approx(summary["geomean_eager"], rel=1e-3)
    assert held["summary"]["tasks"] == summary["tasks"] == 48


def test_committed_files_are_compact(script: ModuleType) -> None:
    for path in sorted((ROOT / "benchmarks" / "results").glob("*/*.json")):
        held = json.loads(path.read_text())
        assert path.read_text() == script.text(script.rounded(held)), f"python benchmarks/results.py compact {path}"


def test_a_judged_task_keeps_what_summaries_are_made_of(script: ModuleType, tmp_path: Path) -> None:
    whole = task("1_a", 2.0) | {
        "stations": [{"name": "build", "seconds": 1.0}], "candidate": "somewhere", "floor_ns": 123456.789,
        "times_ns": {"ours": {"low": 1.0, "mid": 2.00001, "high": 3.0}, "eager": {"mid": 4.0}, "ours_warm": {"mid": 1.0}},
        "patterns": [{"title": "gelu", "point": {"threads": 256, "rows": "auto"}}],
    }  # fmt: skip
    found = script.compact(result(whole) | {"machine": {"device": "H200", "driver": "5"}})
    (kept,) = found["tasks"]
    assert "stations" not in kept and kept["times_ns"] == {"ours": {"mid": 2.00001}, "eager": {"mid": 4.0}}
    assert kept["patterns"] == [{"title": "gelu", "point": "threads=256 rows=auto"}] and kept["ratio"]["eager"]["low"] == 2.0
    script.write(tmp_path / "r.json", found)
    again = json.loads((tmp_path / "r.json").read_text())
    assert again["tasks"][0]["floor_ns"] == 123500 and again["tasks"][0]["times_ns"]["ours"]["mid"] == 2
    script.write(tmp_path / "again.json", script.compact(again))
    assert (tmp_path / "again.json").read_text() == (tmp_path / "r.json").read_text()
    assert script.bench_summary(again["tasks"])["geomean_eager"] == 2.0
    assert len((tmp_path / "r.json").read_text().splitlines()) == 7, "a line a key, and a record a line"


def test_before_and_after_are_compared_task_by_task(script: ModuleType) -> None:
    def timed(name: str, ours: float, status: str = "improved") -> Any:
        return task(name, 2.0) | {"status": status, "times_ns": {"ours": {"mid": ours}, "eager": {"mid": 8e3}}}

    before = result(timed("1_a", 4e3), timed("2_b", 4e3), timed("3_c", 4e3), timed("4_d", 4e3))
    after = result(timed("1_a", 2e3), timed("2_b", 4e3), timed("3_c", 9e3, "unchanged"), timed("4_d", 1e3, "failed"))
    mean, lines = script.compared(before, after)
    assert mean == pytest.approx((2.0 * 1.0 * 0.5) ** (1 / 3)), "where the module is kept its time is eager's"
    assert lines == ["1_a: 4.0 us -> 2.0 us, 2.000", "3_c: 4.0 us -> 8.0 us, 0.500", "4_d: improved -> failed"]


def test_discoveries_of_levels_are_one_file(script: ModuleType) -> None:
    part = {"rule": "", "floor_ns": 1.0, "gain": 0.1}
    modules = [
        {"problem": name, "module_ns": 100.0, "covered": covered, "gain": covered / 2, "calls": ["a"], "parts": [
            part | {"pattern": "fused_0", "title": "gelu", "why": "", "share": covered},
            part | {"pattern": "", "title": "conv", "why": "no skeleton", "share": 1 - covered}]}
        for name, covered in (("9_a", 0.2), ("10_b", 0.6))
    ]  # fmt: skip
    late = {"problem": "1_c", "verdict": {"reason": "failed", "summary": "no result"}}
    found = script.covered({"level2": {"tasks": modules, "command": "discover", "commit": "abc"}, "level3": {"tasks": [late]}})
    assert found["levels"]["level2"]["mean_covered"] == 0.4 and found["levels"]["level3"]["failed"] == 1
    assert found["tasks"][0] == {
        "problem": "9_a", "module_ns": 100.0, "covered": 0.2, "gain": 0.1, "level": "level2",
        "left": {"title": "conv", "share": 0.8, "why": "no skeleton"},
    }  # fmt: skip
