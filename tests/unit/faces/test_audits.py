"""`tilewright audit`: exit codes and JSON of one file, and of a folder in which one file crashes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.command import in_process
from tilewright.faces.folders import is_one_problem
from tilewright.run.campaign import _child

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


def audit(*args: object, cwd: Path) -> tuple[int, str, str]:
    return in_process("audit", *args, "--target", "cpu", cwd=cwd)


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_file_is_void_or_sound(tmp_path: Path) -> None:
    (tmp_path / "void.py").write_text(VOID)
    code, out, _ = audit("void.py", "--json", cwd=tmp_path)
    found = json.loads(out)
    assert (code, found["verdict"], found["problem"]) == (1, "void", "void")
    grave = {f["reason"]: f for f in found["findings"] if f["severity"] == "void"}
    assert set(grave) == {"constant", "ignores_inputs"} and not grave["constant"]["mended"]
    constant = next(s for s in found["figures"]["degenerate_solutions"] if s["kind"] == "constant")
    assert constant["share"] == 0.0 and found["figures"]["scale"] == 1.0
    (tmp_path / "sound.py").write_text(SOUND)
    code, out, _ = audit("sound.py", cwd=tmp_path)
    assert code == 0 and "sigmoid (0)" in out


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_folder_goes_on_after_a_crash_and_continues(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, text in (("1_void", VOID), ("2_crash", CRASHES), ("3_no_problem", "x = 1")):
        (folder / f"{name}.py").write_text(text)
    code, out, _ = audit("tasks", "--out", "kept", "--jobs", 2, "--json", cwd=tmp_path)
    found = json.loads(out)
    assert code == 1, "a task is void"
    assert {k: found["summary"][k] for k in ("tasks", "void", "mended", "failed")} == {
        "tasks": 3, "void": 1, "mended": 0, "failed": 2,
    }  # fmt: skip
    failures = {f["problem"]: f["summary"] for f in found["summary"]["failures"]}
    assert "exit code 3" in failures["2_crash"] and "no `Model`" in failures["3_no_problem"]
    assert found["summary"]["reasons"]["void"] == {"constant": 1, "ignores_inputs": 1}
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "kept").glob("*.json")}
    _, again, _ = audit("tasks", "--only", "1", "--out", "kept", cwd=tmp_path)
    assert "1 tasks: 1 void" in " ".join(again.split())
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "kept").glob("*.json")} == kept, "nothing is done again"


def test_what_hangs_is_killed_and_recorded() -> None:
    hung: dict[str, Any] = _child([sys.executable, "-c", "import time; time.sleep(600)"], Path("a.py"), {}, limit_s=0.5)
    assert hung["verdict"]["reason"] == "hung" and hung["problem"] == "a"


def test_one_problem_or_many(tmp_path: Path) -> None:
    assert is_one_problem(Path("missing.py")) and not is_one_problem(tmp_path)
    (tmp_path / "func_forward.py").write_text(SOUND)
    assert is_one_problem(tmp_path), "a robust-kbench task folder"


def test_no_such_file(tmp_path: Path) -> None:
    code, out, err = audit("none.py", cwd=tmp_path)
    assert (code, out) == (2, "") and "none.py: no such file" in err
    code, _, err = audit("nowhere", cwd=tmp_path)
    assert code == 2 and "no such folder" in err
