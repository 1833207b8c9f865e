"""Static detectors: findings become lines, honest code gives none, and what goes wrong there is a line too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.edges.toolchain import tripwires as module
from tilewright.edges.toolchain.tripwires import tripwires
from tilewright.facts.candidate import Candidate, SourceFile

HONEST = Path(__file__).parents[2] / "cheats" / "honest"


def given(texts: dict[str, str]) -> Candidate:
    return Candidate(files=tuple(SourceFile(path=p, text=t) for p, t in texts.items()))


CHEAT = "import time\ntime.perf_counter = lambda: 0.0\n\nclass ModelNew:\n    pass\n"


def test_a_patched_clock_is_seen_and_told_with_its_file() -> None:
    (line,) = tripwires(given({"model.py": CHEAT, "other.py": "x = 1\n"}))
    assert line.startswith("static detector: TIMER_MONKEYPATCH (critical) in model.py: ")
    assert "time.perf_counter" in line


def test_honest_candidates_trip_nothing() -> None:
    names = ("by_columns", "compile_cache", "kahan_sum", "workspace", "nvrtc_kernel")
    assert tripwires(given({name: (HONEST / f"{name}.py").read_text() for name in names})) == ()


def test_copies_of_the_library_are_not_looked_at_and_what_only_bears_their_name_is() -> None:
    kernels = Path(module.__file__).parents[2] / "kernels"
    calls = (kernels / "cuda" / "common" / "calls.py").read_text(encoding="utf-8")
    assert tripwires(given({"tilewright_kernels/cuda/common/calls.py": calls})) == ()
    assert tripwires(given({"calls.py": calls})) != (), "it calls exec"
    (line,) = tripwires(given({"tilewright_kernels/cuda/common/calls.py": CHEAT}))
    assert "TIMER_MONKEYPATCH" in line


def test_a_huge_file_is_not_looked_at() -> None:
    assert tripwires(given({"model.py": CHEAT + "#" * 400_000})) == ()


def test_no_answer_in_time_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.001)
    assert tripwires(given({"model.py": CHEAT})) == ("static detectors gave no answer within 0 s",)


def test_a_detector_that_is_not_there_is_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernelguard.py").write_text("raise ImportError('not here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert tripwires(given({"model.py": CHEAT})) == ("static detectors could not be run: ImportError: not here",)
