"""Process trees, read from /proc: what descends from a cell, how much memory it holds, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ANONYMOUS = ("Pss_Anon:", "SwapPss:")
_BLOCK_BYTES = 512  # st_blocks counts in these everywhere
_ROUNDS = 50
_TICKS = os.sysconf("SC_CLK_TCK")
_SCHEDULED = 2  # of the clocks that a process has, the one of the scheduler; see clock_getcpuclockid(3)


def descendants(*pids: int) -> list[int]:
    """These processes, and every living one below them. A cell is a subreaper: nothing that it starts slips out by
    forking twice."""
    below = _by_parent(living=True)
    found = list(pids)
    for known in found:
        found += below.get(known, [])
    return found


def children(pid: int) -> list[int]:
    """The processes that `pid` has to wait for, dead or alive."""
    return _by_parent(living=False).get(pid, [])


def started(pid: int) -> int | None:
    """When a living process started, in ticks since the machine did; None where there is none of this number."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_stat(pid)[19])
    return None


def _stat(pid: int) -> list[str]:
    """What the kernel tells of a process behind its name: state, parent, ..., see proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _by_parent(*, living: bool) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid in _all_pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent, *_ = _stat(pid)
            if state != "Z" or not living:
                found.setdefault(int(parent), []).append(pid)
    return found


def private_bytes(pids: Iterable[int]) -> int:
    """Resident private memory (shared memory, such as arenas, is not counted)."""
    total = 0
    for member in pids:
        with contextlib.suppress(OSError, ValueError):
            _, resident, shared, *_ = Path(f"/proc/{member}/statm").read_text().split()
            total += (int(resident) - int(shared)) * _PAGE_BYTES
    return total


def held_bytes(pids: Iterable[int]) -> int:
    """Private memory, with a page that several processes still share since a fork counted once among them. Slower than
    `private_bytes`, which such pages make too large; what can't be read counts as there."""
    total = 0
    for member in pids:
        try:
            text = Path(f"/proc/{member}/smaps_rollup").read_text()
            total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(_ANONYMOUS)) * 1024
        except (OSError, ValueError):
            total += private_bytes([member])
    return total


def shared_bytes(pids: Iterable[int], *, known: Mapping[int, int]) -> int:
    """Memory that the processes hold and that is no process's own (shared mappings, files of memory), at least so much:
    what all hold open, or what one of them has touched. `known`: inodes and sizes of files that are not theirs."""
    opened: dict[int, int] = {}
    touched = 0
    for member in pids:
        opened.update(_open_memory(member))
        touched = max(touched, _touched_bytes(member))
    files = sum(size for inode, size in opened.items() if inode not in known)
    return max(files, touched - sum(known.values()))


def _open_memory(pid: int) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith("/memfd:"):
                    found = os.stat(entry.path)
                    yield found.st_ino, found.st_blocks * _BLOCK_BYTES


def _touched_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/status").read_text().partition("RssShmem:")[2].split()[0]) * 1024
    return 0


def members(pid: int) -> list[int]:
    """`pid` and every living process below it. Asked for often: where the kernel lists a thread's children, not all
    processes of the machine are gone through, and one that comes or goes may be missed."""
    return _listed(pid) or descendants(pid)


def tree_cpu_s(pid: int) -> float:
    """Processor seconds that the living processes of the tree, and those that they have waited for, have used."""
    found = {member: _spent_s(member) for member in members(pid)}
    return sum((_clock_s(member) or mine_s) + of_children_s for member, (mine_s, of_children_s) in found.items())


def all_spent_s() -> dict[int, tuple[float, float]]:
    """Processor seconds of every process of the machine that can be seen, by its number: its own, and those of its
    children that have ended and were waited for."""
    return {pid: _spent_s(pid) for pid in _all_pids()}


def _spent_s(pid: int) -> tuple[float, float]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        user, system, children_user, children_system = map(int, _stat(pid)[11:15])
        return (user + system) / _TICKS, (children_user + children_system) / _TICKS
    return 0.0, 0.0


def _clock_s(pid: int) -> float:
    """What a process has used, to the nanosecond, by its own clock; 0 where it can't be read."""
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULED)
    except OSError:
        return 0.0


def runs(pids: Iterable[int]) -> bool:
    """Whether a thread of these processes runs, or would if it had a processor."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError, IndexError):
                    if Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "R":
                        return True
    return False


def _listed(pid: int) -> list[int]:
    """`pid` and every process below it, as its threads list their children; [] where they don't."""
    found = [pid]
    try:
        for known in found:
            for thread in os.listdir(f"/proc/{known}/task"):
                found += map(int, Path(f"/proc/{known}/task/{thread}/children").read_text().split())
    except OSError:
        return []
    return found


def kill_tree(*pids: int) -> None:
    """SIGKILL to all that descends from these processes, and then to them. The process groups that they lead are
    stopped first, so that none in them starts anything new. None of them may have been reaped yet."""
    _signal_groups(pids, signal.SIGSTOP)
    for _ in range(_ROUNDS):
        below = descendants(*pids)[len(pids) :]
        if not below:
            break
        for member in below:
            _signal(member, signal.SIGKILL)
    _signal_groups(pids, signal.SIGKILL)


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


def _signal_groups(leaders: Iterable[int], which: signal.Signals) -> None:
    for pid in leaders:
        with contextlib.suppress(OSError):
            os.killpg(pid, which)
        _signal(pid, which)


def _signal(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, which)
