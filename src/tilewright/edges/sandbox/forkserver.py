"""The fork server (judge.candidate_process.fork): one process beside the judge's that has imported torch and forks
every cell, in milliseconds and with clean pages.

There is one for each environment that cells share, for as long as this process lives; it sees the end of its channel
when that dies, and the cells die with it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ...facts.errors import HarnessError
from .environment import common_environment, program
from .processes import children, kill_tree

_START_S = 120.0
_ANSWER_S = 30.0
_DEAD = -int(signal.SIGKILL)  # what a cell whose server has died ends with
_POLL_S = 0.005
_ROUNDS = 50
_MOST_BYTES = 1 << 10  # of an answer
_TAIL_BYTES = 4000


class ForkServer(ABC):
    """A process that forks others, asked over `end` from any thread. `start` gives a `Forked`."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, end: socket.socket) -> None:
        self._process = process
        self._end = end
        self._lock = threading.Lock()
        self._limit_s = _START_S
        self._cells: set[int] = set()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, folder: Path, environment: Mapping[str, str], channel: int, output: int) -> Forked:
        """A new cell, with `channel` and `output` for its own. Raises HarnessError where the server does not start."""
        return self.forked({"kind": "start", "folder": str(folder), "environment": dict(environment)}, channel, output)

    def forked(self, request: object, *descriptors: int) -> Forked:
        """What the server forks for this request."""
        with self._lock:
            try:
                pid: int = self._ask(request, *descriptors)
            except OSError as error:
                raise HarnessError(f"no cell can be started: {error}. {self.last_words()}".strip()) from error
            self._cells.add(pid)
        return Forked(self, pid)

    def status(self, pid: int, *, reap: bool = False) -> int | None:
        """The exit code of a cell, negative for a signal; None while it lives. With `reap` its number is given back."""
        with self._lock:
            if reap:
                self._cells.discard(pid)
            try:
                found: int | None = self._ask({"kind": "reap" if reap else "status", "pid": pid})
            except OSError:
                return _DEAD
            return found

    def end_orphans(self) -> None:
        """SIGKILL to what dead cells have left behind: it has become the server's."""
        with self._lock:
            for _ in range(_ROUNDS):
                orphans = [pid for pid in children(self._process.pid) if pid not in self._cells]
                if not orphans or not self.alive:
                    return
                kill_tree(*orphans)
                for pid in orphans:
                    self._ask({"kind": "reap", "pid": pid})

    def close(self) -> None:
        """The server and all cells end."""
        if not self._cells:
            self._process.kill()  # it may still be importing
        self._end.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ANSWER_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(_ANSWER_S)

    def _ask(self, request: object, *descriptors: int) -> Any:
        """Raises OSError when the server does not answer; it is ended then, and its cells with it."""
        try:
            self._end.settimeout(self._limit_s)
            socket.send_fds(self._end, [json.dumps(request).encode()], list(descriptors))
            answer = self._end.recv(_MOST_BYTES)
            if not answer:
                raise ConnectionError("the fork server has ended")
        except OSError:
            self._process.kill()
            self._process.wait(_ANSWER_S)
            raise
        self._limit_s = _ANSWER_S
        return json.loads(answer)

    @abstractmethod
    def last_words(self) -> str:
        """The last few KB that it and what it forked printed."""


class Trunk(ForkServer):
    """The server that starts at once, with this environment: it has imported what a candidate's cell runs on."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [*program("tilewright.judge.candidate_process.serve"), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, pass_fds=(theirs.fileno(),),
                start_new_session=True, cwd="/", env=dict(environment),
            )  # fmt: skip
        super().__init__(process, mine)

    def last_words(self) -> str:
        descriptor = self._said.fileno()  # its place in the file is the server's, too
        return os.pread(descriptor, _TAIL_BYTES, max(0, os.fstat(descriptor).st_size - _TAIL_BYTES)).decode(
            errors="replace"
        )

    def close(self) -> None:
        super().close()
        self._said.close()


class Branch(ForkServer):
    """A server that is forked of a trunk, which lives as long, for the cells of references. Raises HarnessError where
    the trunk does not start."""

    def __init__(self, trunk: Trunk) -> None:
        self._trunk = trunk
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            super().__init__(trunk.forked({"kind": "branch"}, theirs.fileno()), mine)

    def last_words(self) -> str:
        return self._trunk.last_words()


class Forked:
    """A process that a server has forked, as `subprocess.Popen` would show it."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None
        self._reaped = False

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it lives. The process number is not given back."""
        if self.returncode is None:
            self.returncode = self._server.status(self.pid)
        return self.returncode

    def wait(self, timeout_s: float) -> int | None:
        """`poll`, for so long."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self.returncode

    def kill(self) -> None:
        """End it, all that descends from it and all that it has left behind; then give its number back. Safe to call
        twice."""
        if self._reaped:
            return
        kill_tree(self.pid)
        if self.wait(_ANSWER_S) is not None:
            self._server.status(self.pid, reap=True)
            self._reaped = True
        self._server.end_orphans()


Key = tuple[int, tuple[tuple[str, str], ...]]  # the process that asks, and the environment
_trunks: dict[Key, Trunk] = {}
_branches: dict[Key, Branch] = {}
_choosing = threading.Lock()
S = TypeVar("S", bound=ForkServer)


def server_for(environment: Mapping[str, str], *, of_references: bool = False) -> ForkServer:
    """This process's server for cells that share `environment`; started where there is none."""
    key = os.getpid(), tuple(sorted(environment.items()))
    with _choosing:
        trunk = _living(_trunks, key, lambda: Trunk(environment))
        return _living(_branches, key, lambda: Branch(trunk)) if of_references else trunk


def _living(servers: dict[Key, S], key: Key, start: Callable[[], S]) -> S:
    found = servers.get(key)
    if found is not None and not found.alive:
        found.close()
        found = None
    if found is None:
        found = servers[key] = start()
    return found


def start_ahead(threads: int, device: str) -> None:
    """Start the server of a device's cells with so many threads (0: torch's own choice) before the first of them is
    needed."""
    server_for(common_environment(threads=threads, outer=os.environ, device=device))


@atexit.register
def close_servers() -> None:
    """This process's servers and all their cells end."""
    for servers in (_branches, _trunks):
        for (pid, _), server in servers.items():
            if pid == os.getpid():
                server.close()
