"""The command line on the CPU: verdicts, whose fault it is, and many problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.command import PROBLEM, in_process, tilewright
from tilewright.facts.version import VERSION

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]

UNMATCHED = (
    PROBLEM[: PROBLEM.index("        z =")]
    + """        return torch.sort(x).values, torch.sort(y).values

"""
    + PROBLEM[PROBLEM.index("\ndef get_inputs") :]
)


def test_a_wrong_candidate_is_refused_with_stage_and_reason(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(PROBLEM)
    (tmp_path / "wrong.py").write_text(PROBLEM.replace("1.5 * x", "1.5001 * x") + "\nModelNew = Model\n")
    found = json.loads(
        tilewright(
            "evaluate", "toy.py", "wrong.py", "--target", "cpu", "--no-compile", "--json", cwd=tmp_path, expect=1
        )
    )
    assert (found["verdict"]["accepted"], found["verdict"]["stage"]) == (False, "check")
    assert found["verdict"]["reason"]


def test_a_profile_says_what_limits_a_call_and_judges_nothing(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(PROBLEM)
    (tmp_path / "wrong.py").write_text(PROBLEM.replace("1.5 * x", "1.5001 * x") + "\nModelNew = Model\n")
    found = json.loads(tilewright("profile", "toy.py", "wrong.py", "--target", "cpu", "--json", cwd=tmp_path))
    assert found["profile_of"].startswith("candidate ") and found["limit"].startswith("limited by ")
    assert {n["name"]: n["times"] for n in found["longest"]}["aten::sigmoid"] == 1
    assert found["kernels"][0]["source"] == "operators" and 1 <= len(found["changes"]) <= 3
    (tmp_path / "broken.py").write_text("class ModelNew:\n    def __init__(self:\n")
    told = tilewright("profile", "toy.py", "broken.py", "--target", "cpu", cwd=tmp_path, expect=1)
    assert "could not be profiled: does_not_load" in told.replace("\n", " ")


def test_a_module_that_raises_is_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(PROBLEM.replace("z = x", "raise RuntimeError('no such luck')\n        z = x"))
    code, _, err = in_process("optimize", "raises.py", "--target", "cpu", cwd=tmp_path)
    assert code == 2, err
    assert "no such luck" in err.strip().splitlines()[-1]


@pytest.mark.thorough
def test_bench_goes_on_after_a_crash_and_continues(tmp_path: Path) -> None:
    folder = tmp_path / "problems"
    folder.mkdir()
    (folder / "1_good.py").write_text(UNMATCHED)
    (folder / "2_dies.py").write_text(PROBLEM.replace("import torch\n", "import os, torch\nos.abort()\n", 1))
    args = (
        "bench",
        "problems",
        "--target",
        "cpu",
        "--json",
        "out.json",
        "--out",
        "bench",
        "--no-compile",
        "--timing",
        "0.2s",
    )
    tilewright(*args, cwd=tmp_path, expect=3)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found.keys() >= {"tasks", "summary", "command", "commit", "machine"}
    assert [t["status"] == "failed" for t in found["tasks"]] == [False, True]
    assert found["summary"].keys() >= {
        "passed", "failed", "geomean_eager", "geomean_best", "median_eager", "share_won", "geomean_floor_share",
    }  # fmt: skip
    assert found["tasks"][0]["status"] == "no_improvement"
    assert found["summary"]["geomean_eager"] == 1.0
    journals = {p: p.stat().st_mtime_ns for p in (tmp_path / "bench").rglob("run.db")}
    tilewright(*args, cwd=tmp_path, expect=3)
    assert journals and journals == {p: p.stat().st_mtime_ns for p in journals}, "judged again"
    assert json.loads((tmp_path / "out.json").read_text())["tasks"] == found["tasks"]


def test_the_version_is_told(tmp_path: Path) -> None:
    assert tilewright("--version", cwd=tmp_path) == f"tilewright {VERSION}\n"


def test_winners_that_came_with_the_package_are_listed(tmp_path: Path) -> None:
    listed = json.loads(tilewright("winners", "list", "--json", cwd=tmp_path))
    assert listed and {w["kept"] for w in listed} == {"shipped"} and all(w["tried"] for w in listed)


@pytest.mark.thorough
@pytest.mark.usefixtures("haste")
def test_winners_are_tuned_kept_with_evidence_given_away_and_taken_over(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(PROBLEM)
    tuned = json.loads(tilewright("tune", "toy.py", "--target", "cpu", "--json", cwd=tmp_path))
    (won,) = tuned["winners"]
    times = {json.dumps(t["point"]): t["time_ns"]["mid"] for t in won["tried"]}
    assert len(times) == tuned["patterns"][0]["points"] > 1
    assert won["time_ns"]["mid"] == min(times.values()) == times[json.dumps(won["point"])]
    listed = json.loads(tilewright("winners", "list", "--json", cwd=tmp_path))
    assert listed[0] == won and won["kept"] == "here" and {w["kept"] for w in listed[1:]} == {"shipped"}
    tilewright("winners", "export", "given.db", cwd=tmp_path)
    again = json.loads(tilewright("winners", "export", "given.db", "--add", "--json", cwd=tmp_path))
    assert again == {"exported": 1, "there now": 1}
    (tmp_path / "cache" / "winners.db").unlink()
    merged = json.loads(tilewright("winners", "merge", "given.db", "--json", cwd=tmp_path))
    assert merged == {"added": 1, "replaced": 0, "kept": 0}
    listed = json.loads(tilewright("winners", "list", "--json", cwd=tmp_path))
    assert listed[0] == won and won["kept"] == "here" and {w["kept"] for w in listed[1:]} == {"shipped"}
