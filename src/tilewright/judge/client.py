"""A Cell: a child process beside the judge that runs code nobody trusts, spoken to over one private channel.

The judge waits with a deadline, watches the memory of the whole process tree, keeps the tail of what it prints, and
kills it with everything that descends from it. Every way to go wrong is a CellFault with the stage's slug, never a
hang.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..edges.sandbox.deadline import Deadline
from ..edges.sandbox.environment import cell_environment, common_environment
from ..edges.sandbox.forkserver import server_for
from ..edges.sandbox.processes import descendants, held_bytes, members, private_bytes, shared_bytes, tree_cpu_s
from ..facts.errors import HarnessError, TooBusy
from .wire import calls
from .wire import messages as wire
from .wire.channel import Channel

T = TypeVar("T")
_HELLO_S = 120.0
_TAIL_BYTES = 4000
_POLL_S = 0.25
_MAX_PROCESSES = 512  # a compiler's workers and their children are some dozens
_MANY_ENDED = 8
_FEW_PROCESSES = 64  # of more than that, to tell what they share would take longer than they take to fork


def _printable(text: str) -> str:
    """The text without what moves a cursor or has no form in UTF-8: it comes from code that nobody trusts."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


class CellFault(Exception):
    """A request was not carried out. `by_code`: the code under test raised, or the process that runs it died, hung or
    sent nonsense; else the cell's own code failed. `source` is the cell's name; `excerpt` what was raised or printed
    last."""

    def __init__(self, reason: str, summary: str, *, source: str, excerpt: str = "", by_code: bool = True) -> None:
        super().__init__(f"{reason}: {_printable(summary)}")
        self.source = source
        self.reason = reason
        self.summary = _printable(summary)
        self.excerpt = _printable(excerpt[-_TAIL_BYTES:])
        self.by_code = by_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What code under test may take, before it is stopped. `memory_bytes` of 0: what the machine allows."""

    build_s: float = 300.0
    call_s: float = 120.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """How to start a cell. `memory_bytes` bounds the memory of its process tree. `isolate`: all the walls that a
    candidate's cell gets (judge.candidate_process.confine), with `namespaces` those too; nothing in `hidden` can be
    read then. `matmul`: torch's fp32 matmul precision, where it is not the default. `variables` of the environment,
    beside a cell's own."""

    name: str
    device: str
    folder: Path
    memory_bytes: int
    threads: int = 0
    isolate: bool = True
    namespaces: bool = True
    matmul: str = ""
    hidden: tuple[Path, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


class Cell:
    """Starts at once; is ready when `wait_ready` returns. Not thread-safe."""

    def __init__(self, plan: CellPlan, outer: Mapping[str, str] | None = None) -> None:
        self.plan = plan
        self.protections: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()
        self._ready = False
        self._tail = b""
        self._killed_for: tuple[str, str] | None = None
        self._arenas: dict[int, int] = {}  # inodes and sizes of memory that is the judge's
        self._seen: set[int] = set()
        self.spent_s: dict[str, float] = {}  # waited for answers, by kind of request
        plan.folder.mkdir(parents=True, exist_ok=True)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        (plan.folder / "work").mkdir(exist_ok=True)
        self._output, output = os.pipe()
        common = common_environment(
            threads=plan.threads, outer=os.environ if outer is None else outer, device=plan.device
        )
        environment = dict(plan.variables) | cell_environment(plan.folder, common)
        self._end = mine
        with theirs, open(output, "wb") as out:
            server = server_for(common, of_references=not plan.isolate)
            try:
                self._process = server.start(plan.folder / "work", environment, theirs.fileno(), out.fileno())
            except HarnessError:
                self._end.close()
                os.close(self._output)
                raise
        nonce = secrets.token_hex(16)
        setup = {
            "nonce": nonce, "device": plan.device, "threads": plan.threads, "matmul": plan.matmul,
            "isolate": plan.isolate, "namespaces": plan.namespaces,
            "memory_bytes": plan.memory_bytes if plan.device == "cpu" else 0,  # CUDA reserves far more than it uses
            "own": str(plan.folder), "hidden": [str(p) for p in plan.hidden],
        }  # fmt: skip
        mine.sendall(json.dumps(setup).encode() + b"\n")
        self._channel = Channel(mine, nonce, calls.KINDS if plan.isolate else wire.KINDS)
        self._drain = threading.Thread(target=self._keep_tail, name=f"tail of {plan.name}", daemon=True)
        self._drain.start()

    # ---- talking

    def wait_ready(self) -> None:
        """Return once the cell has said hello; HarnessError when it does not come up."""
        if self._ready:
            return
        try:
            hello = self._receive(wire.Hello, _HELLO_S)
        except CellFault as fault:
            self.kill()
            raise HarnessError(f"a cell did not start: {fault.summary} {fault.excerpt}".strip()) from fault
        self.protections, self.missing = hello.protections, hello.missing
        self._ready = True

    def ask(self, request: Any, kind: type[T], *, limit_s: float, descriptor: int | None = None) -> T:
        """Send a request and wait for its answer; raises CellFault, after which a dead or hung cell is killed."""
        self.wait_ready()
        started = time.monotonic()
        try:
            self._channel.send(request, *(() if descriptor is None else (descriptor,)))
            return self._receive(kind, limit_s)
        except wire.WireError as error:
            raise self._death(str(error)) from error
        finally:
            name = type(request).__name__
            self.spent_s[name] = self.spent_s.get(name, 0.0) + time.monotonic() - started

    def do(self, request: Any, *, limit_s: float = 60.0) -> None:
        self.ask(request, wire.Done, limit_s=limit_s)

    def post(self, request: Any) -> None:
        """Send a request whose answer `collect` takes later; answers come in the order of the requests."""
        try:
            self._channel.send(request)
        except wire.WireError as error:
            raise self._death(str(error)) from error

    def collect(self, kind: type[T], *, limit_s: float) -> T:
        self.wait_ready()
        return self._receive(kind, limit_s)

    def map_arena(self, message: wire.MapArena, descriptor: int) -> None:
        if descriptor >= 0:
            self._arenas[os.fstat(descriptor).st_ino] = message.size_bytes
        self.ask(message, wire.Done, limit_s=60.0, descriptor=descriptor if descriptor >= 0 else None)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def cpu_s(self) -> float:
        """Processor seconds that its processes have used until now."""
        self._seen.update(members(self._process.pid))
        return tree_cpu_s(self._process.pid)

    def watch_members(self) -> None:
        """What was seen before of its processes counts for nothing."""
        self._seen = set()

    @property
    def comes_and_goes(self) -> bool:
        """Whether many of its processes have ended that were seen when `cpu_s` was asked for, in others' turns: those
        that its own calls start and wait for are not."""
        return len(self._seen - set(members(self._process.pid))) >= _MANY_ENDED

    def _receive(self, kind: type[T], limit_s: float) -> T:
        deadline = Deadline(limit_s, self._process.pid)
        while True:
            try:
                self._await_data(deadline)
                reply = self._channel.receive()
                break
            except TimeoutError as error:
                raise self._hang(limit_s) from error
            except (wire.WireError, OSError) as error:
                raise self._death(str(error)) from error
        if isinstance(reply, wire.Fault):
            raise self._fault(reply.reason[:60], reply.summary[:1000], excerpt=reply.excerpt, by_code=reply.by_code)
        if not isinstance(reply, kind):
            self.kill()
            raise self._fault("broke_the_protocol", f"the cell answered with a {type(reply).__name__}")
        return reply

    def _await_data(self, deadline: Deadline) -> None:
        """Wait until something can be read, watching the clock and the memory; then give the frame until the deadline.
        Raises TooBusy, after which the cell is dead, where it hardly had a processor until then."""
        self._end.settimeout(_POLL_S)
        while True:
            try:
                self._end.recv(1, socket.MSG_PEEK)
                self._end.settimeout(max(1.0, deadline.left_s))
                return
            except TimeoutError:
                if self._is_over(deadline):
                    raise
                self._killed_for = self._excess()
                if self._killed_for is not None:
                    self.kill()

    def _is_over(self, deadline: Deadline) -> bool:
        deadline.look()
        try:
            return deadline.left_s < 0
        except TooBusy:
            self.kill()
            raise

    def _excess(self) -> tuple[str, str] | None:
        """What the processes of the cell take beyond their limits: reason and summary; None where they keep them."""
        processes = descendants(self._process.pid)
        if len(processes) > _MAX_PROCESSES:
            return "too_many_processes", f"it started {len(processes)} processes, and {_MAX_PROCESSES} are allowed"
        used, allowed = private_bytes(processes), self.plan.memory_bytes
        if used > allowed and len(processes) <= _FEW_PROCESSES:
            used = held_bytes(processes)
        if len(processes) <= _FEW_PROCESSES:
            used += shared_bytes(processes, known=self._arenas)
        if used > allowed:
            return "out_of_memory", f"its processes used {used / 2**30:.1f} GiB of {allowed / 2**30:.1f} allowed"
        return None

    def _fault(self, reason: str, summary: str, *, excerpt: str = "", by_code: bool = True) -> CellFault:
        return CellFault(reason, summary, source=self.plan.name, excerpt=excerpt or self.tail(), by_code=by_code)

    def _hang(self, limit_s: float) -> CellFault:
        self.kill()
        return self._fault("hung", f"no answer within {limit_s:.0f} s; it was killed")

    def _death(self, what: str) -> CellFault:
        code = self._process.wait(2.0)
        self.kill()
        if code is None:
            return self._fault("broke_the_protocol", f"the cell spoke nonsense: {what}")
        if self._killed_for is not None:
            return self._fault(*self._killed_for)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return self._fault("crashed", f"its process ended with {how}")

    # ---- output and end

    def tail(self) -> str:
        """The last few KB that the cell and its children printed."""
        if not self.alive:
            self._drain.join(timeout=1.0)
        return self._tail.decode(errors="replace")

    def _keep_tail(self) -> None:
        while True:
            try:
                chunk = os.read(self._output, 1 << 16)
            except OSError:
                return
            if not chunk:
                return
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]

    def kill(self) -> None:
        """End the process and all that descends from it. Safe to call twice."""
        self._process.kill()
        self._end.close()

    def close(self) -> None:
        """Kill, and remove the private folder."""
        self.kill()
        self._drain.join(timeout=1.0)
        if not self._drain.is_alive() and self._output >= 0:
            os.close(self._output)
            self._output = -1
        shutil.rmtree(self.plan.folder, ignore_errors=True)

    def __enter__(self) -> Cell:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
