"""`tilewright audit`: exit codes and JSON of one file, and of a folder in which one file crashes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.faces.audits import is_one_problem
from tilewright.flow.campaign import _child

SOUND = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * 2
def get_inputs():
    return [torch.randn(16, 16)]
def get_init_inputs():
    return []
"""
VOID = SOUND.replace("torch.sigmoid(x) * 2", "torch.softmax(x.sum(1, keepdim=True), 1)")
CRASHES = SOUND.replace("    return [torch", "    import os; os._exit(3); return [torch")


def tilewright(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *map(str, args), "--target", "cpu"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_file_is_void_or_sound(tmp_path: Path) -> None:
    (tmp_path / "void.py").write_text(VOID)
    done = tilewright("audit", "void.py", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], found["problem"]) == (1, "void", "void")
    grave = {f["reason"]: f for f in found["findings"] if f["severity"] == "void"}
    assert set(grave) == {"constant", "ignores_inputs"} and not grave["constant"]["mended"]
    constant = next(s for s in found["figures"]["shirks"] if s["kind"] == "constant")
    assert constant["share"] == 0.0 and found["figures"]["scale"] == 1.0
    (tmp_path / "sound.py").write_text(SOUND)
    done = tilewright("audit", "sound.py", cwd=tmp_path)
    assert done.returncode == 0 and "sigmoid (0)" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_folder_goes_on_after_a_crash_and_continues(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, text in (("1_void", VOID), ("2_sound", SOUND), ("3_crash", CRASHES), ("4_no_problem", "x = 1")):
        (folder / f"{name}.py").write_text(text)
    done = tilewright("audit", "tasks", "--out", "kept", "--jobs", 2, "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 1, "a task is void"
    assert {k: found["summary"][k] for k in ("tasks", "void", "mended", "failed")} == {
        "tasks": 4, "void": 1, "mended": 0, "failed": 2,
    }  # fmt: skip
    failures = {f["problem"]: f["summary"] for f in found["summary"]["failures"]}
    assert "exit code 3" in failures["3_crash"] and "no `Model`" in failures["4_no_problem"]
    assert found["summary"]["reasons"]["void"] == {"constant": 1, "ignores_inputs": 1}
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "kept").glob("*.json")}
    again = tilewright("audit", "tasks", "--only", "1,2", "--out", "kept", cwd=tmp_path)
    assert "2 tasks: 1 void" in " ".join(again.stdout.split())
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "kept").glob("*.json")} == kept, "nothing is done again"


def test_what_hangs_is_killed_and_recorded() -> None:
    hung: dict[str, Any] = _child([sys.executable, "-c", "import time; time.sleep(60)"], Path("a.py"), {}, limit_s=0.5)
    assert hung["verdict"]["reason"] == "hung" and hung["problem"] == "a"


def test_one_problem_or_many(tmp_path: Path) -> None:
    assert is_one_problem(Path("missing.py")) and not is_one_problem(tmp_path)
    (tmp_path / "func_forward.py").write_text(SOUND)
    assert is_one_problem(tmp_path), "a robust-kbench task folder"


def test_no_such_file(tmp_path: Path) -> None:
    done = tilewright("audit", "none.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and "none.py: no such file" in done.stderr
    done = tilewright("audit", "nowhere", cwd=tmp_path)
    assert done.returncode == 2 and "no such folder" in done.stderr
