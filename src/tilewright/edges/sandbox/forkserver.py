"""The fork server (judge.candidate_process.fork): one process beside the judge's that has imported torch and forks
every cell, in milliseconds and with clean pages.

There is one for each environment that cells share, for as long as this process lives; it sees the end of its channel
when that dies, and the cells die with it. Branches of it have imported more: what references run on, the packages of a
problem's module, what compiles kernels.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ...facts.errors import HarnessError
from .environment import cell_environment, common_environment, program
from .processes import children, kill_tree

_START_S = 120.0
_ANSWER_S = 30.0
_DEAD = -int(signal.SIGKILL)  # what a cell whose server has died ends with
_POLL_S = 0.005
_ROUNDS = 50
_MOST_BYTES = 1 << 10  # of an answer
_TAIL_BYTES = 4000
_IMPORTING = {
    "OPENBLAS_NUM_THREADS": "1",  # SciPy's library starts as many threads as there are processors where it is loaded
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # packages ask for GPUs: the driver's other library is asked, and forks work
}


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

    def run(self, module: str, folder: Path, environment: Mapping[str, str], given: int, output: int) -> Forked:
        """A process that runs a module of ours, found by its name or in `folder`, in which it works: `given` is its
        standard input, `output` its standard output."""
        asked = {"kind": "run", "module": module, "folder": str(folder), "environment": dict(environment)}
        return self.forked(asked, given, output)

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
                [*program("tilewright.judge.candidate_process.cell_main"), str(theirs.fileno())],
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
    """A server that `parent` forks, and that lives as long. It imports those of the modules `imports` that are
    installed, ours, or lie in `folder`, which comes first on its path, with `environment` and a home of its own. Raises
    HarnessError where the parent does not start."""

    def __init__(
        self, parent: ForkServer, *, environment: Mapping[str, str], imports: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        self._parent = parent
        self._home = tempfile.TemporaryDirectory(prefix="tilewright-branch-")
        asked = {
            "kind": "branch", "imports": list(imports), "folder": str(folder or ""),
            "environment": cell_environment(Path(self._home.name), environment) | _IMPORTING,
        }  # fmt: skip
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                super().__init__(parent.forked(asked, theirs.fileno()), mine)
            except HarnessError:
                mine.close()
                self._home.cleanup()
                raise

    @cached_property
    def spoilt(self) -> str:
        """Why nothing can run on what it has imported, "" where it can; waits until all is imported."""
        with self._lock:
            try:
                found: str = self._ask({"kind": "spoilt"})
            except OSError as error:
                found = f"it has ended: {error}"
            return found

    def last_words(self) -> str:
        return self._parent.last_words()

    def close(self) -> None:
        super().close()
        self._home.cleanup()


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
        self._reap()
        self._server.end_orphans()

    def end(self) -> None:
        """The same for one of ours that is about to end by itself: no processes are searched for what it has left
        behind, which ends with its server."""
        if not self._reap():
            self.kill()

    def _reap(self) -> bool:
        if not self._reaped and self.wait(_ANSWER_S) is not None:
            self._server.status(self.pid, reap=True)
            self._reaped = True
        return self._reaped


Key = tuple[object, ...]  # the process that asks, the environment, what was imported and for whom
_servers: dict[Key, ForkServer] = {}  # a branch behind what it is a branch of
_choosing = threading.Lock()
_REFERENCE = ("tilewright.judge.reference_process.session",)
_COMPILER = (  # the DSL, what it imports when it first compiles, and what reads a compiler's orders
    "tvm_ffi", "cutlass.cute", "cutlass.base_dsl.tvm_ffi_builder", "cutlass.cute._tvm_ffi_args_spec_converter",
    "cutlass.cutlass_dsl.tvm_ffi_provider", "tilewright.kernels.cuda.common.demand",
)  # fmt: skip


def server_for(
    environment: Mapping[str, str], *, imports: Sequence[str] = (), of_references: bool = False
) -> ForkServer:
    """This process's server for cells that share `environment`, started where there is none; it has imported those of
    the modules `imports` that are installed, unless cells could not run on what that leaves behind."""
    server = _branch(_trunk(environment), environment, tuple(imports))
    return _branch(server, environment, _REFERENCE) if of_references else server


def compile_environment() -> dict[str, str]:
    """The variables that compilers of kernels share. They see no GPU: what they import would start CUDA, and nothing
    could be forked of them."""
    return {**common_environment(threads=0, outer=os.environ, device="cuda"), "CUDA_VISIBLE_DEVICES": ""}


def compile_server() -> ForkServer:
    """This process's server for compilers of kernels, which has imported the DSL where that is installed."""
    trunk = _trunk(common_environment(threads=0, outer=os.environ, device="cuda"))
    return _branch(trunk, compile_environment(), _COMPILER)


@contextlib.contextmanager
def skeleton_server(folder: Path, environment: Mapping[str, str], imports: Sequence[str]) -> Iterator[ForkServer]:
    """A branch of `compile_server` that has imported the modules of ours `imports` in `folder`, and ends with the
    context; `compile_server` itself where nothing can run on what they leave behind."""
    parent = compile_server()
    with contextlib.closing(Branch(parent, environment=environment, imports=imports, folder=folder)) as branch:
        yield parent if branch.spoilt else branch


def left_aside() -> tuple[str, ...]:
    """Why branches of this process are of no use: what they have imported, others import again."""
    branches = [server for server in list(_servers.values()) if isinstance(server, Branch)]
    return tuple(found for branch in branches if (found := vars(branch).get("spoilt")))


def _trunk(environment: Mapping[str, str]) -> ForkServer:
    with _choosing:
        return _living(_key("trunk", environment), lambda: Trunk(environment))


def _branch(parent: ForkServer, environment: Mapping[str, str], imports: tuple[str, ...]) -> ForkServer:
    """The branch that has imported these; the parent where there are none, or where the branch is of no use: what needs
    them imports them itself then."""
    if not imports:
        return parent
    key = _key(imports, environment, id(parent))
    with _choosing:
        branch = _living(key, lambda: Branch(parent, environment=environment, imports=imports))
    assert isinstance(branch, Branch)
    return parent if branch.spoilt else branch


def _key(kind: object, environment: Mapping[str, str], parent: int = 0) -> Key:
    return os.getpid(), kind, tuple(sorted(environment.items())), parent


def _living(key: Key, start: Callable[[], ForkServer]) -> ForkServer:
    for old, server in reversed(list(_servers.items())):  # what has died goes, with the branches that it had
        if old[0] == os.getpid() and not server.alive:
            _servers.pop(old).close()
    if key not in _servers:
        _servers[key] = start()
    return _servers[key]


def start_ahead(threads: int, device: str, imports: Sequence[str] | None = None) -> None:
    """Start the servers of a device's cells with so many threads (0: torch's own choice) before the first of them is
    needed: on a GPU that of compilers, too; those of cells where their `imports` are known. Returns at once."""
    environment = common_environment(threads=threads, outer=os.environ, device=device)
    _trunk(environment)
    wanted: list[Callable[[], ForkServer]] = [compile_server] if device == "cuda" else []
    if imports is not None:
        wanted.append(partial(server_for, environment, imports=imports, of_references=True))
    for start in wanted:
        threading.Thread(target=_started, args=(start,), daemon=True).start()


def _started(start: Callable[[], ForkServer]) -> None:
    with contextlib.suppress(HarnessError):  # whoever needs it meets the same
        start()


@atexit.register
def close_servers() -> None:
    """This process's servers and all their cells end."""
    for (pid, *_), server in reversed(list(_servers.items())):
        if pid == os.getpid():
            server.close()
