"""A cache folder for each test that starts the command line: it knows a machine's rates, and no winner."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilewright.faces import exits
from tilewright.judge import time_case


@pytest.fixture(autouse=True)
def busy_machines_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the command line says that the machine is too busy to judge, so does the test."""
    line = exits.line

    def said(text: str, code: int) -> int:
        if text.startswith("too busy to judge: other processes"):
            pytest.skip(text)
        return line(text, code)

    monkeypatch.setattr(exits, "line", said)


@pytest.fixture
def own_cache(known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a judge in this process does not ask whether calls are dearer on new contents: where others disturb it, that
    takes up to 120 rounds of calls, two thirds of a judgement. `judge/timing/test_fresh.py`, `judge/test_timing.py` and
    the adversarial corpus ask it, and so do the processes that tests here start."""
    monkeypatch.setattr(time_case, "check_fresh", lambda *_, **__: None)
    shutil.copytree(known, tmp_path / "cache")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
