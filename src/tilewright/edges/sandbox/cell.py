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
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...cell import wire
from ...facts.errors import HarnessError
from .environment import cell_environment
from .processes import kill_marked, kill_tree, tree_bytes

T = TypeVar("T")
START_S = 120.0
_TAIL_BYTES = 4000
_POLL_S = 0.25


class CellFault(Exception):
    """A request was not carried out. `by_code`: the code under test raised, or the process that runs it died, hung or
    sent nonsense; else the cell's own code failed. `source` is the cell's name; `excerpt` what was raised or printed
    last."""

    def __init__(self, reason: str, summary: str, *, source: str, excerpt: str = "", by_code: bool = True) -> None:
        super().__init__(f"{reason}: {summary}")
        self.source = source
        self.reason = reason
        self.summary = summary
        self.excerpt = excerpt[-_TAIL_BYTES:]
        self.by_code = by_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What code under test may take, before it is stopped. `memory_bytes` of 0: what the machine allows."""

    build_s: float = 300.0
    call_s: float = 120.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """How to start a cell. `memory_bytes` bounds the memory of its process tree. `isolate`: a read-only
    disk and, with `namespaces`, a user and a network namespace (for candidates). `matmul`: torch's fp32 matmul
    precision, where it is not the default."""

    name: str
    device: str
    folder: Path
    memory_bytes: int
    threads: int = 0
    isolate: bool = True
    namespaces: bool = True
    matmul: str = ""


class Cell:
    """Starts at once; is ready when `wait_ready` returns. Not thread-safe; start it on a thread that outlives it."""

    def __init__(self, plan: CellPlan, outer: Mapping[str, str] | None = None) -> None:
        self.plan = plan
        self.protections: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()
        self._ready = False
        self._tail = b""
        self._killed_for = ""
        plan.folder.mkdir(parents=True, exist_ok=True)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        (plan.folder / "work").mkdir(exist_ok=True)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tilewright.cell.serve", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(theirs.fileno(),),
                cwd=plan.folder / "work", start_new_session=True,
                env=cell_environment(plan.folder, threads=plan.threads, outer=os.environ if outer is None else outer),
            )  # fmt: skip
        self._end = mine
        nonce = secrets.token_hex(16)
        setup = {
            "nonce": nonce, "device": plan.device, "threads": plan.threads, "matmul": plan.matmul,
            "namespaces": plan.isolate and plan.namespaces, "read_only": plan.isolate,
            "memory_bytes": plan.memory_bytes if plan.device == "cpu" else 0,  # CUDA reserves far more than it uses
            "parent_pid": os.getpid(), "writable": [str(plan.folder)],
        }  # fmt: skip
        mine.sendall(json.dumps(setup).encode() + b"\n")
        self._channel = wire.Channel(mine, nonce)
        self._drain = threading.Thread(target=self._keep_tail, name=f"tail of {plan.name}", daemon=True)
        self._drain.start()

    # ---- talking

    def wait_ready(self) -> None:
        """Return once the cell has said hello; HarnessError when it does not come up."""
        if self._ready:
            return
        try:
            hello = self._receive(wire.Hello, START_S)
        except CellFault as fault:
            self.kill()
            raise HarnessError(f"a cell did not start: {fault.summary} {fault.excerpt}".strip()) from fault
        self.protections, self.missing = hello.protections, hello.missing
        self._ready = True

    def ask(self, request: Any, kind: type[T], *, limit_s: float, descriptor: int | None = None) -> T:
        """Send a request and wait for its answer; raises CellFault, after which a dead or hung cell is killed."""
        self.wait_ready()
        try:
            self._channel.send(request, *(() if descriptor is None else (descriptor,)))
        except wire.WireError as error:
            raise self._death(str(error)) from error
        return self._receive(kind, limit_s)

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
        self.ask(message, wire.Done, limit_s=60.0, descriptor=descriptor if descriptor >= 0 else None)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _receive(self, kind: type[T], limit_s: float) -> T:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                self._await_data(deadline, limit_s)
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

    def _await_data(self, deadline: float, limit_s: float) -> None:
        """Wait until something can be read, watching the clock and the memory; then give the frame until the
        deadline."""
        self._end.settimeout(_POLL_S)
        while True:
            try:
                self._end.recv(1, socket.MSG_PEEK)
                self._end.settimeout(max(1.0, min(limit_s, deadline - time.monotonic())))
                return
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
                used = tree_bytes(self._process.pid)
                if used > self.plan.memory_bytes:
                    self._killed_for = (
                        f"its processes used {used / 2**30:.1f} GiB of {self.plan.memory_bytes / 2**30:.1f} allowed"
                    )
                    self.kill()

    def _fault(self, reason: str, summary: str, *, excerpt: str = "", by_code: bool = True) -> CellFault:
        return CellFault(reason, summary, source=self.plan.name, excerpt=excerpt or self.tail(), by_code=by_code)

    def _hang(self, limit_s: float) -> CellFault:
        self.kill()
        return self._fault("hung", f"no answer within {limit_s:.0f} s; it was killed")

    def _death(self, what: str) -> CellFault:
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._fault("broke_the_protocol", f"the cell spoke nonsense: {what}")
        code = self._process.returncode
        self.kill()
        if self._killed_for:
            return self._fault("out_of_memory", self._killed_for)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return self._fault("crashed", f"its process ended with {how}")

    # ---- output and end

    def tail(self) -> str:
        """The last few KB that the cell and its children printed."""
        if not self.alive:
            self._drain.join(timeout=1.0)
        return self._tail.decode(errors="replace")

    def _keep_tail(self) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while True:
            try:
                chunk = os.read(descriptor, 1 << 16)
            except OSError:
                return
            if not chunk:
                return
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]

    def kill(self) -> None:
        """End the process and all that descends from it. Safe to call twice."""
        if self._process.poll() is None:
            kill_tree(self._process.pid)
            self._process.wait()
        kill_marked(f"HOME={self.plan.folder}/")
        self._end.close()

    def close(self) -> None:
        """Kill, and remove the private folder."""
        self.kill()
        self._drain.join(timeout=1.0)
        if self._process.stdout is not None and not self._drain.is_alive():
            self._process.stdout.close()
        shutil.rmtree(self.plan.folder, ignore_errors=True)

    def __enter__(self) -> Cell:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
