"""What a cell takes from itself before it imports anything of size: privileges, network, signals of escape.

Called once, by a single-threaded process. Each protection is tried and the outcome reported; none that fails is fatal,
since what a kernel lacks is said in the verdict instead. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_MAX_OPEN_FILES = 4096
_MAX_FILE_BYTES = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What to ask for. `memory_bytes` limits private memory (0: not limited); `namespaces` asks for a
    user and a network namespace of its own, `read_only` for a disk that can't be written outside `writable`."""

    memory_bytes: int
    namespaces: bool
    read_only: bool
    parent_pid: int
    writable: tuple[str, ...] = ()


def confine(asked: Confinement) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the protections that are active now, and "name: why" of those that could not be had."""
    steps: list[tuple[str, Callable[[], None]]] = []
    if asked.namespaces:
        steps += [("user namespace", _new_user), ("network namespace", _new_network)]
    steps += [
        ("dies with the judge", lambda: _die_with(asked.parent_pid)),  # a change of namespace would clear it
        ("owns its descendants", lambda: _prctl(_PR_SET_CHILD_SUBREAPER, 1)),
        ("resource limits", lambda: _limit(asked.memory_bytes)),
        ("no new privileges", lambda: _prctl(_PR_SET_NO_NEW_PRIVS, 1)),
    ]
    if asked.read_only:
        steps.append(("read-only disk", lambda: _read_only_disk(asked.writable)))
    active: list[str] = []
    missing: list[str] = []
    for name, step in steps:
        try:
            step()
            active.append(name)
        except OSError as error:
            missing.append(f"{name}: {error.strerror or error}")
    return tuple(active), tuple(missing)


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
    limits = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, _MAX_FILE_BYTES),
    ]
    if memory_bytes:
        limits.append((resource.RLIMIT_DATA, memory_bytes))
    for what, value in limits:
        hard = resource.getrlimit(what)[1]
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (ceiling, ceiling))


def _new_user() -> None:
    uid, gid = os.getuid(), os.getgid()
    _check(_libc().unshare(_CLONE_NEWUSER))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _new_network() -> None:
    _check(_libc().unshare(_CLONE_NEWNET))


# ---- Landlock: the disk may be read, and written only in the cell's own folder and in devices ----------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_WRITE_FILE = 1 << 1
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))  # remove and make of every kind of file
_REFER = 1 << 13  # from ABI 2
_TRUNCATE = 1 << 14  # from ABI 3


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def _read_only_disk(writable: tuple[str, ...]) -> None:
    libc = _libc()
    libc.syscall.restype = ctypes.c_long
    abi = _check(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)))
    access = _WRITE_FILE | _REMOVE_AND_MAKE | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    ruleset = _Ruleset(access)
    handle = _check(libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(8), ctypes.c_uint32(0)))
    try:
        for place in (*writable, "/dev", "/proc/self"):
            folder = os.open(place, os.O_PATH | os.O_CLOEXEC)
            rule = _PathBeneath(access, folder)
            _check(libc.syscall(_ADD_RULE, handle, _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0)))
            os.close(folder)
        _check(libc.syscall(_RESTRICT_SELF, handle, ctypes.c_uint32(0)))
    finally:
        os.close(handle)
