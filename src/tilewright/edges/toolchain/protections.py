"""A script for a child process: tries each protection that a cell can have and prints what works, as one JSON line.

Each is tried in a fork of its own, since most can't be undone. The standard library is enough.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_STRICT = 38, 22, 1
_LANDLOCK_CREATE_RULESET, _LANDLOCK_VERSION = 444, 1


def in_a_fork(attempt: Callable[[], bool]) -> bool:
    """Whether the attempt ends well in a child; one that is killed has not."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if attempt() else 1)
        except BaseException:  # the child must never come back into the parent's code
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return status == 0


def namespaces() -> bool:
    """A user and network namespace, in which only an (unconfigured) loopback device is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
        return False
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return [line.partition(":")[0].strip() for line in lines] in ([], ["lo"])


def no_new_privs() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) == 0


def memory_limit() -> bool:
    """RLIMIT_AS makes a large allocation fail."""
    limit = 1 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        bytearray(2 * limit)
    except MemoryError:
        return True
    return False


def landlock_version() -> int:
    """The kernel's Landlock ABI, 0 where it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))
    return max(0, int(version))


def cgroup() -> bool:
    """A cgroup (version 2) of our own that can be divided and holds the memory controller."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        return False
    folder = Path("/sys/fs/cgroup") / own.lstrip("/")
    controllers = folder / "cgroup.controllers"
    return controllers.is_file() and "memory" in controllers.read_text().split() and os.access(folder, os.W_OK)


if __name__ == "__main__":
    works = {f.__name__: in_a_fork(f) for f in (namespaces, no_new_privs, memory_limit, cgroup)}
    json.dump(works | {"landlock_version": landlock_version()}, sys.stdout)
