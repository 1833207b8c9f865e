"""The lease: one holder at a time, given back at the end, also by death."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.edges.gpu.lease import lease, lease_path, quarantine
from tilewright.facts.errors import HarnessError

HOLD = """
import sys, time
from tilewright.edges.gpu.lease import lease
with lease("cuda:7"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            holder.kill()  # the kernel gives the lease back

        started = time.monotonic()
        with lease("cuda:7", say):
            assert said == ["another run measures on cuda:7; waiting for it"]
        assert time.monotonic() - started < 10


def test_devices_do_not_wait_for_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said: list[str] = []
    with lease("cuda:0", said.append), lease("cuda:1", said.append), lease("cpu", said.append):
        assert said == []
    assert lease_path("cuda:0") != lease_path("cuda:1")


def test_a_device_under_quarantine_is_not_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    quarantine("cuda:7", "3 uncorrected errors\nin the GPU's memory")
    with (
        pytest.raises(HarnessError, match=r"quarantine: 3 uncorrected errors in .*; remove"),
        lease("cuda:7"),
    ):
        raise AssertionError("it was lent")
    lease_path("cuda:7").unlink()
    with lease("cuda:7"):
        pass
