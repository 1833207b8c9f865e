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
