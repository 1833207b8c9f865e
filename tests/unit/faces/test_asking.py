"""A model that answers by letters writes a kernel for the CPU: pending, resumed, refused, mended, judged, replayed."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from fakes.command import tilewright
from tilewright.edges.ledger import Ledger
from tilewright.facts.dialogue import Reply
from tilewright.facts.move import CallTool
from tilewright.facts.outcome import Failure, Timed

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return sum(torch.cos(x) for _ in range(24))


def get_inputs():
    return [torch.randn(64, 1024)]


def get_init_inputs():
    return []
"""

# C++ of its own, built with the plain compiler when the module is made: quick, and nothing but a file to load.
KERNEL = """IDEA: one pass over memory
PREDICTION: 20x, one cosine for each element
FILE: model.py
```python
import ctypes
import pathlib
import subprocess

import torch
from torch import nn


def built():
    folder = pathlib.Path(__file__).parent
    made = folder / "libcosine.so"
    command = ["g++", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-o", str(made)]
    subprocess.run([*command, str(folder / "cosine.cpp")], check=True)
    return ctypes.CDLL(str(made))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.library = built()

    def forward(self, x):
        y = torch.cos(x)
        self.library.scale(ctypes.c_void_p(y.data_ptr()), ctypes.c_long(y.numel()))
        return y
```
FILE: cosine.cpp
```cpp
extern "C" void scale(float *y, long n) {
    for (long i = 0; i < n; ++i) y[i] *= 25.0f;
}
```
END OF REPLY
"""

MENDED = """IDEA: twenty-four, not twenty-five
FILE: cosine.cpp
<<<<<<< SEARCH
    for (long i = 0; i < n; ++i) y[i] *= 25.0f;
=======
    for (long i = 0; i < n; ++i) y[i] *= 24.0f;
>>>>>>> REPLACE
END OF REPLY
"""


def answer(folder: Path, reply: str) -> str:
    """Reply to the prompt that waits; the prompt's text."""
    (waiting,) = [
        p for p in folder.glob("*.prompt.md") if not p.with_name(p.name.replace(".prompt", ".reply")).exists()
    ]
    waiting.with_name(waiting.name.replace(".prompt", ".reply")).write_text(reply)
    return waiting.read_text()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.measured
@pytest.mark.usefixtures("own_cache")
def test_letters_carry_a_run_from_a_refusal_to_a_kernel_that_is_right(tmp_path: Path) -> None:
    (tmp_path / "cosines.py").write_text(PROBLEM)
    flags = ("--target", "cpu", "--timing", "0.2s", "--no-compile", "--budget", "2calls", "--no-wait")
    model = ("--strategy", "cutegen_paper", "--model", "mailbox:box")
    tilewright("optimize", "cosines.py", "--out", "run", *flags, *model, cwd=tmp_path, expect=75)
    assert "torch.cos(x) for _ in range(24)" in answer(tmp_path / "box", KERNEL)
    tilewright("resume", "run", "--no-wait", cwd=tmp_path, expect=75)
    asked = answer(tmp_path / "box", MENDED)
    assert "wrong values" in asked and "First diagnose" in asked and "y[i] *= 25.0f" in asked
    found = json.loads(tilewright("resume", "run", "--no-wait", "--json", cwd=tmp_path))
    assert found["verdict"]["accepted"], found["verdict"]  # how much faster is not asked here: others are at work, too
    with Ledger(tmp_path / "run" / "run.db", readonly=True) as ledger:
        first, refused, second, passed, _ = ledger.events()
    assert isinstance(first.outcome, Reply) and isinstance(second.outcome, Reply)
    assert isinstance(refused.outcome, Failure) and refused.outcome.reason == "wrong_values"
    assert isinstance(passed.outcome, Timed) and "24.0f" in str(passed.move)
    for letter in (tmp_path / "box").iterdir():
        letter.unlink()
    again = json.loads(tilewright("resume", "run", "--json", cwd=tmp_path))  # without model and judge
    assert (again["ratio"], again["tried"]) == (found["ratio"], found["tried"])
    texts = [row[0] for row in sqlite3.connect(tmp_path / "run" / "run.db").execute("SELECT body FROM text")]
    assert any("First diagnose" in text for text in texts) and any("twenty-four" in text for text in texts)
    report = (tmp_path / "run" / "report.md").read_text()
    assert "mailbox: tokens unknown, price unknown" in report


def mailed(folder: Path, kind: str, text: str) -> str:
    """Answer the letter that waits with a file of this kind; the letter's text."""
    letters = sorted(folder.glob("*.prompt.md"))
    (waiting,) = [
        p for p in letters
        if not any(p.with_name(p.name.replace(".prompt.md", end)).exists() for end in (".reply.md", ".calls.json"))
    ]  # fmt: skip
    waiting.with_name(waiting.name.replace(".prompt.md", kind)).write_text(f"{text}\nEND OF REPLY\n")
    return waiting.read_text()


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.measured
@pytest.mark.usefixtures("own_cache")
def test_calls_of_tools_go_by_letter_and_what_a_run_has_learnt_stands_in_the_next(tmp_path: Path) -> None:
    (tmp_path / "cosines.py").write_text(PROBLEM)
    (tmp_path / "others.py").write_text(PROBLEM)
    flags = ("--target", "cpu", "--timing", "0.2s", "--no-compile", "--budget", "2calls", "--no-wait", "--tools")
    model = ("--strategy", "cutegen", "--without", "library", "--model", "mailbox:box")
    tilewright("optimize", "cosines.py", "--out", "run", *flags, *model, cwd=tmp_path, expect=75)
    wrong = KERNEL.removesuffix("END OF REPLY\n")
    calls = [{"tool": "run", "arguments": {"edits": wrong}}, {"tool": "search", "arguments": {"query": "fusion"}}]
    asked = mailed(tmp_path / "box", ".calls.json", json.dumps(calls))
    assert "To call tools first" in asked and "instruction sets" in asked
    tilewright("resume", "run", "--no-wait", cwd=tmp_path, expect=75)
    (answers,) = (tmp_path / "box").glob("*.answers.md")
    assert "refused at check: wrong values" in answers.read_text() and "`search` answers:" in answers.read_text()
    mailed(tmp_path / "box", ".reply.md", wrong)
    tilewright("resume", "run", "--no-wait", cwd=tmp_path, expect=75)
    mailed(tmp_path / "box", ".reply.md", MENDED.removesuffix("END OF REPLY\n"))
    found = json.loads(tilewright("resume", "run", "--no-wait", "--json", cwd=tmp_path))
    assert found["verdict"]["accepted"], found["verdict"]
    with Ledger(tmp_path / "run" / "run.db", readonly=True) as ledger:
        assert [e.move.tool for e in ledger.events() if isinstance(e.move, CallTool)] == ["run", "search"]
    assert "tools" in (tmp_path / "run" / "report.md").read_text()
    tilewright("optimize", "others.py", "--out", "next", *flags, *model, cwd=tmp_path, expect=75)
    asked = mailed(tmp_path / "box", ".reply.md", "No.")
    assert "What earlier runs on such work found on this machine" in asked
    assert "one pass over memory: wrong values (refused by the judge; cosines, f32[64,1024])" in asked
    off = tuple("library,lessons" if word == "library" else word for word in model)
    tilewright("optimize", "others.py", "--out", "without", *flags, *off, cwd=tmp_path, expect=75)
    assert "What earlier runs" not in mailed(tmp_path / "box", ".reply.md", "No.")
