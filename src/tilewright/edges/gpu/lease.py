"""The lease of a device: one run measures on it at a time, while others may prepare.

Who waits leaves a locked file beside it that says since when its run is at work: the oldest is served first. Served in
the order in which they ask, runs that began together stay together, and prepare their next problems all at once, while
the device has nothing to do."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...facts.errors import HarnessError

_COMMON = "/tmp"  # what TMPDIR names may be each process's own
_LONGEST = 500  # of the reason for a quarantine
_LOOK_S = 0.03  # so often who waits looks whether it is its turn
_GRACE_S = 1.0  # so long a device stays free for an older run that waits, and perhaps was stopped
_NOTHING: Callable[[str], None] = lambda line: None  # noqa: E731


def lease_path(device: str) -> Path:
    """The lock file of a device ("cpu", "cuda:0"): of a GPU the same for every process of this user on this machine,
    whatever it sees of the others and wherever it puts temporary files."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return _folder(tempfile.gettempdir()) / f"{device}.lease"
    visible = [v.strip() for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    index = int(number or 0)
    one = visible[index] if index < len(visible) and visible[index] else str(index)
    found = _folder(_COMMON if os.access(_COMMON, os.W_OK) else tempfile.gettempdir())
    return found / f"cuda-{one.replace('/', '-')}.lease"


def _folder(temporary: str) -> Path:
    return Path(temporary, f"tilewright-{os.getuid()}")


@contextmanager
def lease(device: str, say: Callable[[str], None] = _NOTHING, *, since_ns: int | None = None) -> Iterator[None]:
    """Hold the device alone for the block; waits for whoever has it, and for who waits since earlier (`since_ns` of
    time.time_ns(); None: now), and says so once. The kernel gives the lease back when its holder dies. Raises
    HarnessError where the device is under quarantine."""
    path = lease_path(device)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        since_ns = time.time_ns() if since_ns is None else since_ns
        if _waits_longer(path, since_ns) or not _locked(descriptor):
            say(f"another run measures on {device}; waiting for it")
            _wait(path, descriptor, since_ns)
        why = os.pread(descriptor, _LONGEST, 0).decode(errors="replace")
        if why:
            raise HarnessError(f"{device} is under quarantine: {why}; remove {path} once it is well")
        yield
    finally:
        os.close(descriptor)


def _wait(path: Path, descriptor: int, since_ns: int) -> None:
    """Until the lease is this run's: no older one waits, or has not taken it for a while."""
    with _place(path, since_ns):
        free_since = None
        while True:
            if not _locked(descriptor):
                free_since = None
            elif not _waits_longer(path, since_ns) or time.monotonic() - (free_since or time.monotonic()) > _GRACE_S:
                return
            else:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                free_since = free_since or time.monotonic()
            time.sleep(_LOOK_S)


@contextmanager
def _place(path: Path, since_ns: int) -> Iterator[None]:
    """Among those who wait: a file that is locked for as long as its owner lives."""
    own = path.with_name(f"{path.stem}.{since_ns:020d}-{os.getpid()}.waits")
    descriptor = os.open(own, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        own.unlink(missing_ok=True)
        os.close(descriptor)


def _waits_longer(path: Path, since_ns: int) -> bool:
    """Whether a run waits that is older; what the dead have left is removed."""
    for other in path.parent.glob(f"{path.stem}.*.waits"):
        born, _, pid = other.name.split(".")[-2].partition("-")
        if (int(born), int(pid)) < (since_ns, os.getpid()) and _lives(other):
            return True
    return False


def _lives(place: Path) -> bool:
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not _locked(descriptor):
            return True
        place.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Whether the lock could be had at once."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def quarantine(device: str, why: str) -> None:
    """Let nobody measure on the device until its lease file is removed, which restarting the machine does too."""
    path = lease_path(device)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(" ".join(why.split())[:_LONGEST])
