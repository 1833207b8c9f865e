"""The lease of a device: one run measures on it at a time, while others may prepare.

Who waits leaves a locked file beside it that says since when its run is at work: the oldest is served first. Served in
the order in which they ask, runs that began together stay together, and prepare their next problems all at once, while
the device has nothing to do.

Leases lie where every user of the machine finds them, whatever TMPDIR says: files of one user that others may read,
which is all that locking takes."""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...facts.errors import HarnessError
from .shared_places import Spoilt, opened, own_folder, places

IN_TURNS = "TILEWRIGHT_IN_TURNS"  # in the environment of a campaign's tasks, which wait for one another's leases
_LONGEST = 500  # of the reason for a quarantine
_LOOK_S = 0.03  # so often who waits looks whether it is its turn
_GRACE_S = 1.0  # so long a device stays free for an older run that waits, and perhaps was stopped
_NOTHING: Callable[[str], None] = lambda line: None  # noqa: E731
_said: set[str] = set()  # of what is told once a process
_waited = [0.0]  # seconds of waits that are over
_waiting: dict[int, float] = {}  # by thread, since when


def lease_path(device: str, *, visible: str | None = None) -> Path:
    """The lock file of a device ("cpu", "cuda:0"): the same for every process on this machine, whoever runs it,
    whatever it sees of the other GPUs and wherever it puts temporary files. `visible`: of a process that sees these
    GPUs (a value of CUDA_VISIBLE_DEVICES); None: of this one."""
    return (*places(), own_folder())[0] / f"tilewright-{_name(device, visible)}.lease"


def only_worker(device: str, *, visible: str | None = None) -> int | None:
    """A descriptor that makes this process the one worker of campaigns on the device, for as long as it is open; None
    where another process is. It is no lease: the worker's tasks take that to measure."""
    descriptor = opened(lease_path(device, visible=visible).with_suffix(".worker"))
    if _locked(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def quarantine_path(device: str) -> Path:
    """The file that says why this user's runs may not measure on the device."""
    return lease_path(device).with_suffix(f".sick-{os.getuid()}")


def _name(device: str, seen: str | None = None) -> str:
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return device.replace(":", "-")
    visible = [v.strip() for v in (seen_here() if seen is None else seen).split(",")]
    index = int(number or 0)
    one = visible[index] if index < len(visible) and visible[index] else str(index)
    return f"cuda-{one.replace('/', '-')}"


def seen_here() -> str:
    """The GPUs of this process as the machine numbers them: within a job, Slurm may have renumbered what
    CUDA_VISIBLE_DEVICES says."""
    visible, job = os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.environ.get("SLURM_JOB_GPUS", "")
    return job if job and job.count(",") == visible.count(",") else visible


@contextmanager
def lease(device: str, say: Callable[[str], None] = _NOTHING, *, since_ns: int | None = None) -> Iterator[None]:
    """Hold the device alone for the block; waits for whoever has it, and for who waits since earlier (`since_ns` of
    time.time_ns(); None: now), and says so once. The kernel gives the lease back when its holder dies. Where a lock
    file can't be had of the machine's users together, the next best place is taken, and that is said. Raises
    HarnessError where the device is under quarantine."""
    _require_well(device)
    path, descriptor = _lock_file(device, say)
    try:
        since_ns = time.time_ns() if since_ns is None else since_ns
        if _waits_longer(path, (since_ns, os.getpid())) or not _locked(descriptor):
            say(f"another run measures on {device}; waiting for it")
            _wait(path, descriptor, since_ns)
        _require_well(device)
        yield
    finally:
        os.close(descriptor)


def _lock_file(device: str, say: Callable[[str], None]) -> tuple[Path, int]:
    name = f"tilewright-{_name(device)}.lease"
    for folder in places():
        try:
            return folder / name, opened(folder / name)
        except (OSError, Spoilt) as error:
            _say_once(say, f"no lease of {device} can be had at {folder / name}: {error}")
    alone = own_folder() / name
    _say_once(say, f"the lease of {device} lies in {alone.parent}: other users' runs are not kept off the device")
    return alone, opened(alone)


def _say_once(say: Callable[[str], None], line: str) -> None:
    if line not in _said:
        _said.add(line)
        say(line)


def waited_s() -> float:
    """Seconds that this process has waited for leases, one that it waits for at this moment included."""
    return _waited[0] + sum(time.monotonic() - begun for begun in list(_waiting.values()))


def unwaited() -> float:
    """time.monotonic(), in a campaign's task without what it waited for leases: the clock of a budget."""
    return time.monotonic() - (waited_s() if IN_TURNS in os.environ else 0.0)


@contextmanager
def _counted() -> Iterator[None]:
    thread = threading.get_ident()
    _waiting[thread] = time.monotonic()
    try:
        yield
    finally:
        _waited[0] += time.monotonic() - _waiting.pop(thread)


def _wait(path: Path, descriptor: int, since_ns: int) -> None:
    """Until the lease is this run's: no older one waits, or has not taken it for a while."""
    with _place(path, since_ns), _counted():
        free_since = None
        while True:
            if not _locked(descriptor):
                free_since = None
            elif (
                not _waits_longer(path, (since_ns, os.getpid()))
                or time.monotonic() - (free_since or time.monotonic()) > _GRACE_S
            ):
                return
            else:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                free_since = free_since or time.monotonic()
            time.sleep(_LOOK_S)


@contextmanager
def _place(path: Path, since_ns: int) -> Iterator[None]:
    """Among those who wait: a file that is locked for as long as its owner lives."""
    own = path.with_name(f"{path.stem}.{since_ns:020d}-{os.getpid()}-{secrets.token_hex(4)}.waits")
    descriptor = opened(own)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        own.unlink(missing_ok=True)
        os.close(descriptor)


def _waits_longer(path: Path, own: tuple[int, int]) -> bool:
    """Whether a run waits that is older than `own` (since when, process); what the dead have left is removed, if it is
    this user's."""
    for other in path.parent.glob(f"{path.stem}.*.waits"):
        born, _, rest = other.name.split(".")[-2].partition("-")
        pid = rest.partition("-")[0]
        if born.isdigit() and pid.isdigit() and (int(born), int(pid)) < own and _lives(other):
            return True
    return False


def _lives(place: Path) -> bool:
    try:
        descriptor = opened(place, create=False)
    except (OSError, Spoilt):
        return False
    try:
        if not _locked(descriptor):
            return True
        with suppress(OSError):  # another user's
            place.unlink()
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


def _require_well(device: str) -> None:
    path = quarantine_path(device)
    with suppress(OSError, Spoilt):
        descriptor = opened(path, create=False)
        why = os.pread(descriptor, _LONGEST, 0).decode(errors="replace")
        owner = os.fstat(descriptor).st_uid
        os.close(descriptor)
        if owner == os.getuid():
            raise HarnessError(f"{device} is under quarantine: {why}; remove {path} once it is well")


def quarantine(device: str, why: str) -> None:
    """Let no run of this user measure on the device until the file is removed, which restarting the machine may do
    too. Where another user holds its name there is no quarantine."""
    with suppress(OSError, Spoilt):
        descriptor = opened(quarantine_path(device), write=True)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, " ".join(why.split())[:_LONGEST].encode())
        os.close(descriptor)
