"""The lease: one holder at a time, given back at the end, also by death."""

from __future__ import annotations

import os
import signal
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
with lease("cpu:7"):
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
        with lease("cpu:7", say):
            assert said == ["another run measures on cpu:7; waiting for it"]
        assert time.monotonic() - started < 10


WAIT = """
import sys
from tilewright.edges.gpu.lease import lease
with lease("cpu:7", lambda line: print("waits", flush=True), since_ns=int(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def _waiting(since_ns: int) -> subprocess.Popen[str]:
    """A process that waits for the lease, and gives it back when it reads a line."""
    run = subprocess.Popen(
        [sys.executable, "-c", WAIT, str(since_ns)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None and run.stdout.readline() == "waits\n"
    return run


@pytest.mark.parametrize("older_is", ["well", "stopped", "dead"])
def test_the_oldest_run_is_served_first(older_is: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it asked last; who is stopped, or dead, holds nobody up."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with lease("cpu:7"):
        younger, older = _waiting(2000), _waiting(1000)
        deadline = time.monotonic() + 20
        while len(list(lease_path("cpu:7").parent.glob("*.waits"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.1)  # until both places are locked
        if older_is != "well":
            os.kill(older.pid, signal.SIGSTOP if older_is == "stopped" else signal.SIGKILL)
    first, second = (older, younger) if older_is == "well" else (younger, older)
    assert first.stdout is not None and first.stdout.readline() == "held\n"
    if older_is == "well":
        assert len(list(lease_path("cpu:7").parent.glob("*.waits"))) == 1, "the younger waits on"
    os.kill(older.pid, signal.SIGCONT)
    first.communicate("\n", timeout=10)
    out, _ = second.communicate("\n", timeout=10)
    assert out == ("" if older_is == "dead" else "held\n")
    assert not list(lease_path("cpu:7").parent.glob("*.waits"))


def test_devices_do_not_wait_for_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said: list[str] = []
    with lease("cpu:0", said.append), lease("cpu:1", said.append), lease("cpu", said.append):
        assert said == []
    assert lease_path("cuda:0") != lease_path("cuda:1")


@pytest.mark.parametrize(
    ("visible", "device", "name"),
    [
        ("", "cuda:0", "0"),
        ("0,1", "cuda:0", "0"),
        ("0, 1", "cuda:1", "1"),
        ("1", "cuda:0", "1"),
        ("GPU-5a", "cuda:0", "GPU-5a"),
    ],
)
def test_a_gpu_has_one_lease_whatever_else_is_seen(
    visible: str, device: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    before = lease_path(device)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert lease_path(device) == before
    assert before.name == f"cuda-{name}.lease"


def test_a_device_under_quarantine_is_not_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    quarantine("cpu:7", "3 uncorrected errors\nin the GPU's memory")
    with (
        pytest.raises(HarnessError, match=r"quarantine: 3 uncorrected errors in .*; remove"),
        lease("cpu:7"),
    ):
        raise AssertionError("it was lent")
    lease_path("cpu:7").unlink()
    with lease("cpu:7"):
        pass
