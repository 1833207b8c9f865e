"""The lease of a device: one run measures on it at a time, while others may prepare."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...facts.errors import HarnessError

_COMMON = "/tmp"  # what TMPDIR names may be each process's own
_LONGEST = 500  # of the reason for a quarantine
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
def lease(device: str, say: Callable[[str], None] = _NOTHING) -> Iterator[None]:
    """Hold the device alone for the block; waits for whoever has it, and says so once. The kernel gives the lease
    back when its holder dies. Raises HarnessError where the device is under quarantine."""
    path = lease_path(device)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run measures on {device}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        why = os.pread(descriptor, _LONGEST, 0).decode(errors="replace")
        if why:
            raise HarnessError(f"{device} is under quarantine: {why}; remove {path} once it is well")
        yield
    finally:
        os.close(descriptor)


def quarantine(device: str, why: str) -> None:
    """Let nobody measure on the device until its lease file is removed, which restarting the machine does too."""
    path = lease_path(device)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(" ".join(why.split())[:_LONGEST])
