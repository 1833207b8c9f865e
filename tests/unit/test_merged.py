"""benchmarks/merged.py: tasks judged anew take their old ones' place, with what made them; what broke takes none."""

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
    spec = importlib.util.spec_from_file_location("merged", ROOT / "benchmarks" / "merged.py")
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
    assert held["summary"] == script.bench_summary(held["tasks"])
