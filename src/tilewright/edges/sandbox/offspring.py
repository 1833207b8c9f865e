"""Children that end with this process: a signal ends them through `end_offspring`, and so does whatever kills us.

Each child leads a process group. The guard, a shell that reads our pipe, holds the numbers of the groups that live.
When the pipe closes without our word, as after SIGKILL, it ends them, and what else carries our mark in its
environment.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...facts.errors import HarnessError
from .processes import children, kill_tree

_GRACE_S = 10.0  # for a child that cleans up by itself; then it is killed
_GUARD = """
trap '' HUP INT TERM
kept=" "
while read -r what group; do
  case $what in
    +) kept="$kept$group " ;;
    -) kept="${kept%% $group *} ${kept#* $group }" ;;
    .) exit ;;
  esac
done
for group in $kept; do kill -9 "-$group"; done
grep -lsF "$1" /proc/[0-9]*/environ | while IFS=/ read -r none proc pid file; do kill -9 "$pid"; done
"""
_MARK = "TILEWRIGHT_PARENT"


class _Offspring:
    """The children of one process. `polite` ones are told by SIGTERM and have time; others hold nothing and are
    killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[subprocess.Popen[Any], bool] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._mark = f"{_MARK}=none"
        self.ended = False

    def add(self, command: Sequence[str], *, polite: bool, given: Mapping[str, Any]) -> subprocess.Popen[Any]:
        with self._lock:
            if self.ended:
                raise HarnessError("this process is about to end and starts no other")
            child = subprocess.Popen(command, start_new_session=True, **given)
            self._living[child] = polite
            self._tell(f"+ {child.pid}")
        return child

    def remove(self, child: subprocess.Popen[Any]) -> None:
        """The child has been waited for; nothing of its group outlives it."""
        with self._lock:
            if self._living.pop(child, None) is not None:
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)
                self._tell(f"- {child.pid}")

    def end(self) -> None:
        """Tell those that clean up, kill the others, and start no more; without waiting."""
        self.ended = True
        for child, polite in list(self._living.items()):  # no lock: a signal may have interrupted who holds it
            if child.returncode is None:
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGTERM) if polite else kill_tree(child.pid)
        for pid in children(os.getpid()):  # compilers and tools that share our group: they hold nothing
            with contextlib.suppress(OSError):
                if os.getpgid(pid) == os.getpgrp():
                    kill_tree(pid)

    def kill(self) -> None:
        for child in list(self._living):
            if child.returncode is None:
                kill_tree(child.pid)

    def watch(self) -> None:
        """Start the guard before the first child, and have it look for our mark, too."""
        self._mark = f"{_MARK}={os.getpid()}-{secrets.token_hex(8)}"
        name, _, value = self._mark.partition("=")
        os.environ[name] = value
        with self._lock:
            self._tell("")

    def close(self) -> None:
        """The guard ends; what still lives ends with it."""
        if self._guard is not None and self._guard.stdin is not None:
            if not self._living:
                self._tell(".")
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
            self._guard.wait()

    def _tell(self, line: str) -> None:
        if self._guard is None or self._guard.poll() is not None:
            if self._guard is not None and self._guard.stdin is not None:  # somebody ended it
                with contextlib.suppress(OSError):
                    self._guard.stdin.close()
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", self._mark], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )  # fmt: skip
            line = "\n".join(f"+ {child.pid}" for child in self._living)
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.write(f"{line}\n".encode())
            self._guard.stdin.flush()


_all: dict[int, _Offspring] = {}  # by process: what was forked has none of its parent's


def _ours() -> _Offspring:
    return _all.setdefault(os.getpid(), _Offspring())


@atexit.register
def close_guard() -> None:
    """The guard ends, and what still lives of the children ends with it."""
    if os.getpid() in _all:
        _ours().close()


@contextmanager
def offspring(command: Sequence[str], *, polite: bool = False, **given: Any) -> Iterator[subprocess.Popen[Any]]:
    """A child as the leader of a process group of its own, with Popen's other arguments. Whichever way the block is
    left, the group has ended: a `polite` child is told by SIGTERM and has ten seconds first. Raises HarnessError once
    `end_offspring` was called."""
    child = _ours().add(command, polite=polite, given=given)
    try:
        yield child
    finally:
        try:
            if polite and child.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.communicate(timeout=_GRACE_S)
        finally:
            if child.poll() is None:
                kill_tree(child.pid)
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError):  # ValueError: its pipes are closed
                child.communicate(timeout=_GRACE_S)
            _ours().remove(child)


def watch_over_us() -> None:
    """From here on whatever this process starts ends with it, even at SIGKILL; but for what gets an environment of its
    own and is no `offspring`."""
    _ours().watch()


def end_offspring() -> None:
    """Have all children end but fork servers, whose cells are closed in order, and start no more; from any thread, and
    from a signal's handler. Threads that wait for one are woken by its end."""
    _ours().end()


def kill_offspring() -> None:
    """SIGKILL to all children and what descends from them."""
    _ours().kill()


def ending() -> bool:
    """Whether `end_offspring` was called: what becomes of a child from then on says nothing of its work."""
    return _ours().ended
