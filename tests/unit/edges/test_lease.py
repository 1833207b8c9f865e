"""The lease: one holder at a time, given back at the end, also by death."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.edges.gpu import shared_places
from tilewright.edges.gpu.lease import lease, lease_path, quarantine, quarantine_path, waited_s
from tilewright.facts.errors import HarnessError
from waiting import wait_until

HOLD = """
import sys, time
from tilewright.edges.gpu.lease import lease
with lease("cpu:7"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            holder.kill()  # the kernel gives the lease back

        started, waited = time.monotonic(), waited_s()
        with lease("cpu:7", say):
            assert said == ["another run measures on cpu:7; waiting for it"]
        assert time.monotonic() - started < 300
    assert waited < waited_s() <= time.monotonic() - started + waited, "what a campaign's budget leaves out"


WAIT = """
import sys
from tilewright.edges.gpu import lease as leases
from tilewright.edges.gpu.lease import lease
leases._GRACE_S = float(sys.argv[2])
with lease("cpu:7", lambda line: print("waits", flush=True), since_ns=int(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def _waiting(since_ns: int, grace_s: float) -> subprocess.Popen[str]:
    """A process that waits for the lease, and gives it back when it reads a line."""
    run = subprocess.Popen(
        [sys.executable, "-c", WAIT, str(since_ns), str(grace_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None and run.stdout.readline() == "waits\n"
    return run


def _is_locked(path: Path) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("older_is", ["well", "stopped", "dead"])
def test_the_oldest_run_is_served_first(older_is: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it asked last; who is stopped, or dead, holds nobody up."""
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path))
    with lease("cpu:7"):
        grace_s = 300.0 if older_is == "well" else 1.0  # on a busy machine the older one may come late
        younger, older = _waiting(2000, grace_s), _waiting(1000, grace_s)
        places = lease_path("cpu:7").parent
        wait_until(lambda: [_is_locked(place) for place in places.glob("*.waits")] == [True, True])
        if older_is != "well":
            os.kill(older.pid, signal.SIGSTOP if older_is == "stopped" else signal.SIGKILL)
    first, second = (older, younger) if older_is == "well" else (younger, older)
    assert first.stdout is not None and first.stdout.readline() == "held\n"
    if older_is == "well":
        assert len(list(lease_path("cpu:7").parent.glob("*.waits"))) == 1, "the younger waits on"
    os.kill(older.pid, signal.SIGCONT)
    first.communicate("\n", timeout=300)
    out, _ = second.communicate("\n", timeout=300)
    assert out == ("" if older_is == "dead" else "held\n")
    assert not list(lease_path("cpu:7").parent.glob("*.waits"))


def test_devices_do_not_wait_for_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path))
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
    assert before.name == f"tilewright-cuda-{name}.lease"


def test_a_device_under_quarantine_is_not_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path))
    quarantine("cpu:7", "3 uncorrected errors\nin the GPU's memory")
    with (
        pytest.raises(HarnessError, match=r"quarantine: 3 uncorrected errors in .*; remove"),
        lease("cpu:7"),
    ):
        raise AssertionError("it was lent")
    quarantine_path("cpu:7").unlink()
    with lease("cpu:7"):
        pass


def _held_by(device: str, *, temporary: Path, uid: int = -1) -> subprocess.Popen[str]:
    """A process that holds the device's lease, with temporary files of its own, as another user if told."""
    script = HOLD.replace('"cpu:7"', repr(device))
    become = "" if uid < 0 else f"import os; os.setgroups([]); os.setgid({uid}); os.setuid({uid})"
    temporary.mkdir()
    temporary.chmod(0o777)
    run = subprocess.Popen(
        [sys.executable, "-c", script.replace('with lease', f"{become}\nwith lease", 1)],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(temporary)},
    )  # fmt: skip
    assert run.stdout is not None and run.stdout.readline() == "held\n"
    return run


@pytest.fixture
def device() -> Iterator[str]:
    """One that no other test leases, in the place that all users share."""
    name = f"cpu:{os.getpid()}{secrets.token_hex(3)}"
    yield name
    lease_path(name).unlink(missing_ok=True)


@pytest.mark.parametrize("uid", [-1, 65534])
def test_processes_with_other_temporary_folders_exclude_one_another(
    uid: int, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if uid >= 0 and os.getuid() != 0:
        pytest.skip("only root can become another user")
    monkeypatch.delenv("TILEWRIGHT_LEASES", raising=False)
    if not shared_places.places():
        pytest.skip("this machine has no folder that all users share")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with _held_by(device, temporary=tmp_path / "other", uid=uid) as holder:
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            holder.kill()

        with lease(device, say):
            assert said == [f"another run measures on {device}; waiting for it"]


def _spoil(path: Path, how: str) -> None:
    if how == "link":
        path.symlink_to(path.with_name("victim"))
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        path.touch(mode=0o600)


@pytest.mark.parametrize("how", ["link", "pipe", "folder", "closed"])
def test_what_somebody_put_in_the_leases_place_is_not_used(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user then comes to the next place, and says so; where there is none, that others are not kept off."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.delenv("TILEWRIGHT_LEASES", raising=False)
    monkeypatch.setattr("tilewright.edges.gpu.lease._said", set())
    monkeypatch.setattr("tilewright.edges.gpu.lease.places", lambda: (first, second))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _spoil(first / "tilewright-cpu-7.lease", how)
    said: list[str] = []
    with lease("cpu:7", said.append), pytest.raises(BlockingIOError):
        fcntl.flock(os.open(second / "tilewright-cpu-7.lease", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(said) == 1 and str(first) in said[0]
    assert not (first / "victim").exists()
    (second / "tilewright-cpu-7.lease").unlink()
    _spoil(second / "tilewright-cpu-7.lease", how)
    with lease("cpu:7", said.append):
        assert "not kept off" in said[-1]


def test_only_folders_of_root_that_keep_files_apart_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_LEASES", raising=False)
    link = tmp_path / "link"
    link.symlink_to("/tmp")
    monkeypatch.setattr(shared_places, "_COMMON", (tmp_path / "absent", link, tmp_path))
    tmp_path.chmod(0o777)
    assert shared_places.places() == ()
    if os.getuid() == 0:
        tmp_path.chmod(0o1777)
        assert shared_places.places() == (tmp_path,)


def test_a_lock_file_is_readable_by_all_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        os.close(shared_places.opened(tmp_path / "one.lease"))
    finally:
        os.umask(before)
    assert (tmp_path / "one.lease").stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.iterdir()] == ["one.lease"]


def test_a_quarantine_that_another_user_wrote_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path))
    quarantine("cpu:7", "a lie")
    os.chown(quarantine_path("cpu:7"), 65534, 65534)
    with lease("cpu:7"):
        pass
