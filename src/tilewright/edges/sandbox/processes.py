"""Process trees, read from /proc: what descends from a cell, how much memory it holds, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ROUNDS = 50


def descendants(pid: int) -> list[int]:
    """`pid` and every living process below it. A cell is a subreaper: nothing that it starts slips out by forking
    twice."""
    children: dict[int, list[int]] = {}
    for other in _all_pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent, *_ = Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                children.setdefault(int(parent), []).append(other)
    found = [pid]
    for known in found:
        found += children.get(known, [])
    return found


def tree_bytes(pid: int) -> int:
    """Resident private memory of the tree (shared memory, such as arenas, is not counted)."""
    total = 0
    for member in descendants(pid):
        with contextlib.suppress(OSError, ValueError):
            _, resident, shared, *_ = Path(f"/proc/{member}/statm").read_text().split()
            total += (int(resident) - int(shared)) * _PAGE_BYTES
    return total


def kill_tree(pid: int) -> None:
    """SIGKILL to all that descends from `pid`, which is stopped first so that it starts nothing new, and then to it and
    to the process group that it leads. `pid` must not have been reaped yet."""
    _signal(pid, signal.SIGSTOP)
    for _ in range(_ROUNDS):
        below = descendants(pid)[1:]
        if not below:
            break
        for member in below:
            _signal(member, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    _signal(pid, signal.SIGKILL)


def kill_marked(marker: str) -> None:
    """SIGKILL to every process that carries `marker` in its environment: what a dead cell may have left behind."""
    for _ in range(_ROUNDS):
        found = [p for p in _all_pids() if p != os.getpid() and _carries(p, marker.encode())]
        if not found:
            return
        for pid in found:
            _signal(pid, signal.SIGKILL)


def _carries(pid: int, marker: bytes) -> bool:
    try:
        return marker in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _signal(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, which)
