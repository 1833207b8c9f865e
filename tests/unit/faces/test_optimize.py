"""The main job on the CPU, as a user does it: optimize, kill and resume, report, and use what was found."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fakes.command import PROBLEM, tilewright
from tilewright.edges.ledger import Ledger
from tilewright.facts.move import Stop, Try
from tilewright.facts.outcome import Timed
from tilewright.run import in_time

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache", "haste")]

FIELDS = {
    "run", "problem", "target", "status", "verdict", "error", "times_ns", "ratio", "floor_ns", "floor_share",
    "patterns", "candidate", "fallbacks",
}  # fmt: skip


@pytest.mark.measured
def test_optimize_survives_a_kill_judges_reports_and_leaves_a_candidate_that_stands_alone(tmp_path: Path) -> None:
    found = _killed_and_resumed(tmp_path)
    assert found.keys() >= FIELDS
    assert found["status"] == "improved", (found["verdict"], found.get("tried"))
    assert found["target"] == "cpu"
    assert found["error"]["norm"] <= found["error"]["allowed_norm"]
    assert found["error"]["worst"] <= found["error"]["allowed_worst"]
    assert 1 < found["ratio"]["eager"]["low"] <= found["ratio"]["eager"]["mid"] <= found["ratio"]["eager"]["high"]
    moved_bytes = 4 * (3 * 128 * 1031 + 1031)
    assert found["floor_ns"] == pytest.approx(moved_bytes / found["machine"]["copy_bytes_per_s"] * 1e9)
    assert found["floor_share"] == pytest.approx(found["floor_ns"] / found["times_ns"]["ours"]["mid"])
    assert found["fallbacks"] == []
    report = (tmp_path / "run" / "report.md").read_text()
    assert "toy" in report and "<svg" in (tmp_path / "run" / "report.html").read_text()
    _runs_without_tilewright(tmp_path)
    table = tilewright("report", "run", cwd=tmp_path)
    assert "candidate" in table


def _runs_without_tilewright(tmp_path: Path) -> None:
    """The candidate folder, alone: same values as the reference, survives torch.compile, takes other numbers of rows,
    and falls back on other shapes."""
    alone = tmp_path / "alone"
    shutil.copytree(tmp_path / "run" / "candidate", alone)
    code = """
import sys, torch
class Never:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tilewright":
            raise ImportError(name)
sys.meta_path.insert(0, Never())
from model import ModelNew
import model, original
new, old = ModelNew(1031), original.Model(1031) if hasattr(original, "Model") else None
new.load_state_dict(old.state_dict())
with torch.no_grad():
    for rows in (128, 5, 1):
        x, y = torch.randn(rows, 1031), torch.randn(rows, 1031)
        torch.testing.assert_close(new(x, y), old(x, y), rtol=1e-5, atol=1e-6)
    x, y = torch.randn(128, 1031), torch.randn(128, 1031)
    compiled = torch.compile(new, fullgraph=True, backend="aot_eager")  # Inductor would take longer than all the rest
    torch.testing.assert_close(compiled(x, y), old(x, y), rtol=1e-5, atol=1e-6)
    assert sum(model.FALLBACKS.values()) == 1, model.FALLBACKS
new(x, y).sum().backward()
assert new.gain.grad is not None
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _killed_and_resumed(cwd: Path) -> dict[str, Any]:
    """Start the run, kill -9 it after its first event, and resume it to its end."""
    (cwd / "toy.py").write_text(PROBLEM)
    command = [sys.executable, "-m", "tilewright", "optimize", "toy.py", "--target", "cpu", "--out", "run", "--json"]
    command += ["--timing", "0.5s", "--no-compile"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    run = subprocess.Popen(command, cwd=cwd, **silent)
    journal = cwd / "run" / "run.db"
    deadline = time.monotonic() + 1800
    while time.monotonic() < deadline and run.poll() is None and _events(journal) < 1:
        time.sleep(0.05)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    before = _events(journal)
    assert before >= 1
    found: dict[str, Any] = json.loads(tilewright("resume", "run", "--json", cwd=cwd))
    assert _events(journal) > before
    assert json.loads(tilewright("resume", "run", "--json", cwd=cwd)) == found
    return found


def _events(journal: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM event").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.thorough
def test_a_budget_of_a_second_has_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it may take then is `in_time`'s; here others may have the processors."""
    monkeypatch.setattr(in_time, "_FIRST_GRACE_S", 300.0)
    (tmp_path / "toy.py").write_text(PROBLEM)
    told = ("--target", "cpu", "--out", "run", "--budget", "1s", "--no-sanitize", "--json")
    tilewright("optimize", "toy.py", *told, cwd=tmp_path)
    with Ledger(tmp_path / "run" / "run.db", readonly=True) as ledger:
        moves = [(type(e.move), type(e.outcome)) for e in ledger.events()]
    assert moves == [(Try, Timed), (Stop, type(None))], "the search ends by itself, and begins nothing more"
