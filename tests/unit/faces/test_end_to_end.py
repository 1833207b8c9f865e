"""The main job on the CPU, as a user does it: optimize, kill and resume, evaluate, report, bench, Python API."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tilewright.edges.gpu.machine import machine

pytestmark = pytest.mark.slow

PROBLEM = """
import torch
from torch import nn

CASES = [{"rows": 512, "width": 1031}, {"rows": 3, "width": 17}]


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        z = x * torch.sigmoid(1.5 * x) + y
        return z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6) * self.gain


def get_inputs(rows, width):
    return [torch.randn(rows, width), torch.randn(rows, width)]


def get_init_inputs(rows, width):
    return [width]
"""
FIELDS = {
    "run", "problem", "target", "status", "verdict", "error", "times_ns", "ratio", "floor_ns", "floor_share",
    "patterns", "candidate", "fallbacks",
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that knows this machine's rates and no winner."""
    folder = tmp_path_factory.mktemp("measured")
    machine("cpu", cache_dir=folder)
    return folder


@pytest.fixture(autouse=True)
def _own_cache(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured, tmp_path / "cache")


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")}


def tilewright(*args: object, cwd: Path, expect: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", *map(str, args)],
        cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == expect, done.stderr
    return done.stdout


def test_optimize_survives_a_kill_judges_reports_and_leaves_a_candidate_that_stands_alone(tmp_path: Path) -> None:
    found = _killed_and_resumed(tmp_path)
    assert found.keys() >= FIELDS
    assert found["status"] == "improved", found
    assert found["target"] == "cpu"
    assert found["error"]["norm"] <= found["error"]["allowed_norm"]
    assert found["error"]["worst"] <= found["error"]["allowed_worst"]
    for name in ("eager", "compile"):
        assert 0 < found["ratio"][name]["low"] <= found["ratio"][name]["mid"] <= found["ratio"][name]["high"]
    assert found["ratio"]["eager"]["low"] > 1
    assert 0 < found["floor_share"] < 1.2
    assert found["fallbacks"] == []
    report = (tmp_path / "run" / "report.md").read_text()
    assert "toy" in report and "<svg" in (tmp_path / "run" / "report.html").read_text()
    _runs_without_tilewright(tmp_path)
    table = tilewright("report", "run", cwd=tmp_path)
    assert "candidate" in table


def _runs_without_tilewright(tmp_path: Path) -> None:
    """The candidate folder, alone: same values as the reference, survives torch.compile, falls back on other shapes."""
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
    for rows in (512, 5):
        x, y = torch.randn(rows, 1031), torch.randn(rows, 1031)
        torch.testing.assert_close(new(x, y), old(x, y), rtol=1e-5, atol=1e-6)
    x, y = torch.randn(512, 1031), torch.randn(512, 1031)
    torch.testing.assert_close(torch.compile(new, fullgraph=True)(x, y), old(x, y), rtol=1e-5, atol=1e-6)
    assert sum(model.FALLBACKS.values()) == 1, model.FALLBACKS
new(x, y).sum().backward()
assert new.gain.grad is not None
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=alone, env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _killed_and_resumed(cwd: Path) -> dict[str, Any]:
    """Start the run, kill -9 it after its first event, and resume it to its end."""
    (cwd / "toy.py").write_text(PROBLEM)
    command = [sys.executable, "-m", "tilewright", "optimize", "toy.py", "--target", "cpu", "--out", "run", "--json"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    run = subprocess.Popen(command, cwd=cwd, env=environment(cwd), **silent)
    journal = cwd / "run" / "run.db"
    deadline = time.monotonic() + 300
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
        with sqlite3.connect(f"file:{journal}?mode=ro", uri=True) as db:
            return int(db.execute("SELECT count(*) FROM event").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def test_a_wrong_candidate_is_refused_with_stage_and_reason(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(PROBLEM)
    (tmp_path / "wrong.py").write_text(PROBLEM.replace("1.5 * x", "1.5001 * x") + "\nModelNew = Model\n")
    found = json.loads(
        tilewright("evaluate", "toy.py", "wrong.py", "--target", "cpu", "--json", cwd=tmp_path, expect=1)
    )
    assert (found["verdict"]["accepted"], found["verdict"]["stage"]) == (False, "check")
    assert found["verdict"]["reason"]


def test_a_module_that_raises_is_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(PROBLEM.replace("z = x", "raise RuntimeError('no such luck')\n        z = x"))
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", "optimize", "raises.py", "--target", "cpu"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "no such luck" in done.stderr.strip().splitlines()[-1]


def test_bench_goes_on_after_a_crash_and_continues(tmp_path: Path) -> None:
    folder = tmp_path / "problems"
    folder.mkdir()
    (folder / "1_good.py").write_text(PROBLEM)
    (folder / "2_dies.py").write_text(PROBLEM.replace("import torch\n", "import os, torch\nos.abort()\n", 1))
    args = ("bench", "problems", "--target", "cpu", "--json", "out.json", "--out", "bench")
    tilewright(*args, cwd=tmp_path)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found.keys() >= {"tasks", "summary", "command", "commit", "machine"}
    assert [t["status"] == "failed" for t in found["tasks"]] == [False, True]
    assert found["summary"].keys() >= {
        "passed", "failed", "geomean_eager", "geomean_best", "median_eager", "share_won", "geomean_floor_share",
    }  # fmt: skip
    good = found["tasks"][0]["ratio"]["eager"]["mid"] if found["tasks"][0]["status"] == "improved" else 1.0
    assert found["summary"]["geomean_eager"] == pytest.approx(good**0.5, rel=1e-6)
    start = time.monotonic()
    tilewright(*args, cwd=tmp_path)
    assert time.monotonic() - start < 10
    assert json.loads((tmp_path / "out.json").read_text())["tasks"] == found["tasks"]


class Block(nn.Module):
    """Defined in a test module: captured by value."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(768)
        self.scale = nn.Parameter(torch.full((768,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * nn.functional.mish(self.norm(x))


def test_the_python_api_gives_a_drop_in_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tilewright

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    block = Block()
    nn.init.normal_(block.norm.weight)
    x = torch.randn(2048, 768)
    found = tilewright.optimize(block, [x], target="cpu", out=tmp_path / "run", budget="60s")
    assert found.status == "improved", found.report
    assert found.module is not block
    assert list(found.module.state_dict()) == list(block.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(found.module(x), block(x), rtol=1e-5, atol=1e-5)
    judged = tilewright.evaluate(block, tmp_path / "run" / "candidate", [x], target="cpu", out=tmp_path / "again")
    assert judged.accepted, judged.report
