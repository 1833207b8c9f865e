"""What a cell takes from itself before it runs any code under test: privileges, network, signals of escape.

Called once, by a single-threaded process. Each protection is tried and the outcome reported; none that fails is fatal,
since what a kernel lacks is said in the verdict instead. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import landlock, seccomp
from .disk import DiskView, grants

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_MAX_OPEN_FILES = 4096
_MAX_TASKS = 8192  # processes and threads: a compiler's workers on a large machine take hundreds
_MAX_FILE_BYTES = 8 << 30
_SHARED_MEMORY_BYTES = 2 << 30
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 1 << 1, 1 << 2, 1 << 14, 1 << 18
_CAPABILITY_VERSION = 0x20080522


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What to ask for. `memory_bytes` limits private memory (0: not limited). `isolate`: all that a candidate's cell
    gets; else what keeps the cell from others. `namespaces`: user, network and mount namespaces of its own too.
    `own`: the folder that may be written, beside those of `also`; `hidden`: places that must not be read. `watched`: a
    tool outside must go on talking to the process."""

    memory_bytes: int
    isolate: bool
    namespaces: bool
    parent_pid: int
    device: str
    own: str
    hidden: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    watched: bool = False


def confine(asked: Confinement) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the protections that are active now, and "name: why" of those that could not be had."""
    taken = _Taken()
    if asked.isolate:
        _prctl(_PR_SET_DUMPABLE, 1)  # a process whose memory is closed may not map its users
    if asked.isolate and asked.namespaces:
        taken.take("user namespace", _new_user)
        taken.take("network namespace", lambda: _unshare(_CLONE_NEWNET))
        taken.take("private shared memory", _own_shared_memory)
        if "user namespace" in taken.active:  # without one, the user's other processes would count
            taken.take("limit on processes", lambda: _limit_to(resource.RLIMIT_NPROC, _MAX_TASKS))
    taken.take("dies with the judge", lambda: _die_with(asked.parent_pid))  # a change of namespace would clear it
    taken.take("owns its descendants", adopt_orphans)
    taken.take("resource limits", lambda: _limit(asked.memory_bytes))
    taken.take("no new privileges", lambda: _prctl(_PR_SET_NO_NEW_PRIVS, 1))
    taken.take("others keep their pace", seccomp.keep_to_itself)  # in every cell: a filter costs system calls time
    if not asked.isolate:
        taken.take("closed memory", close_memory)
        return tuple(taken.active), tuple(taken.missing)
    taken.take("no capabilities", _drop_capabilities)
    # Where /dev/shm is everybody's, results could outlive a cell in it; a CUDA driver may need it all the same.
    shared = "private shared memory" in taken.active or asked.device == "cuda"
    try:
        view = DiskView(own=(asked.own, *asked.also), hidden=asked.hidden, shared_memory=shared)
        had, lacking = landlock.restrict(grants(view, os.environ), alone=not asked.watched)
    except OSError as error:
        had, lacking = (), tuple(f"{name}: {error.strerror or error}" for name in landlock.PROTECTIONS)
    return (*taken.active, *had), (*taken.missing, *lacking)


def close_memory() -> None:
    """No other process of this user can read the memory of this one."""
    _prctl(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """What descends from this process and has lost its parent becomes its child."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@dataclass(slots=True)
class _Taken:
    """Protections tried one after another."""

    active: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def take(self, name: str, step: Callable[[], None]) -> None:
        try:
            step()
            self.active.append(name)
        except OSError as error:
            self.missing.append(f"{name}: {error.strerror or error}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _prctl(option: int, value: int) -> None:
    _check(_libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def _die_with(parent_pid: int) -> None:
    """The kernel kills us when the thread that started us ends; if it is gone already, nobody waits for us."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _limit(memory_bytes: int) -> None:
    _limit_to(resource.RLIMIT_CORE, 0)
    _limit_to(resource.RLIMIT_NOFILE, _MAX_OPEN_FILES)
    _limit_to(resource.RLIMIT_FSIZE, _MAX_FILE_BYTES)
    if memory_bytes:
        _limit_to(resource.RLIMIT_DATA, memory_bytes)


def _limit_to(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (ceiling, ceiling))


def _unshare(flags: int) -> None:
    _check(_libc().unshare(flags))


def _new_user() -> None:
    uid, gid = os.getuid(), os.getgid()
    _unshare(_CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _own_shared_memory() -> None:
    """A /dev/shm that nobody else sees and that ends with the cell."""
    _unshare(_CLONE_NEWNS)
    mount, none = _libc().mount, ctypes.c_void_p()
    _check(mount(b"none", b"/", none, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), none))
    options = f"size={_SHARED_MEMORY_BYTES},mode=1777".encode()
    _check(mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(_MS_NOSUID | _MS_NODEV), options))


def _drop_capabilities() -> None:
    """Those of the superuser, in whichever namespace; what a program run as root can do by them, a cell can't."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(_libc().capset(header, (ctypes.c_uint32 * 6)()))
