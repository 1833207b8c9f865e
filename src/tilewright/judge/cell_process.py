"""The process of a cell: how it is started, what it prints and takes, and how it ends."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..edges.sandbox.environment import cell_environment, common_environment
from ..edges.sandbox.forkserver import server_for
from ..edges.sandbox.processes import descendants, held_bytes, members, private_bytes, shared_bytes, tree_cpu_s
from ..facts.errors import HarnessError

TAIL_BYTES = 4000
_MAX_PROCESSES = 512  # a compiler's workers and their children are some dozens
_MANY_ENDED = 8
_FEW_PROCESSES = 64  # of more than that, to tell what they share would take longer than they take to fork


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """How to start a cell. `memory_bytes` bounds the memory of its process tree. `isolate`: all the walls that a
    candidate's cell gets (judge.candidate_process.confine), with `namespaces` those too; nothing in `hidden` can be
    read then. `matmul`: torch's fp32 matmul precision, where it is not the default. `variables` of the environment,
    beside a cell's own. `imports`: modules that are imported before the cell is forked, where they are installed."""

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
    imports: tuple[str, ...] = ()


class CellProcess:
    """Starts at once. `end`: of the socket pair, of which the process has the other one."""

    def __init__(self, plan: CellPlan, outer: Mapping[str, str]) -> None:
        self._folder = plan.folder
        self._tail = b""
        (plan.folder / "work").mkdir(parents=True, exist_ok=True)
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._output, output = os.pipe()
        common = common_environment(threads=plan.threads, outer=outer, device=plan.device)
        environment = dict(plan.variables) | cell_environment(plan.folder, common)
        with theirs, open(output, "wb") as out:
            server = server_for(common, imports=plan.imports, of_references=not plan.isolate)
            try:
                self._process = server.start(plan.folder / "work", environment, theirs.fileno(), out.fileno())
            except HarnessError:
                self.end.close()
                os.close(self._output)
                raise
        self._drain = threading.Thread(target=self._keep_tail, name=f"tail of {plan.name}", daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def exit_code(self, timeout_s: float) -> int | None:
        """Negative for a signal; None where it still lives after so long."""
        return self._process.wait(timeout_s)

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
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    def kill(self) -> None:
        """End it and all that descends from it. Safe to call twice."""
        self._process.kill()
        self.end.close()

    def close(self) -> None:
        """Kill, and remove the private folder."""
        self.kill()
        self._drain.join(timeout=1.0)
        if not self._drain.is_alive() and self._output >= 0:
            os.close(self._output)
            self._output = -1
        shutil.rmtree(self._folder, ignore_errors=True)


class CellUsage:
    """What the processes of a cell take. `arenas`: inodes and sizes of memory that is the judge's."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: set[int] = set()
        self.arenas: dict[int, int] = {}

    def cpu_s(self) -> float:
        """Processor seconds that its processes have used until now."""
        self._seen.update(members(self._pid))
        return tree_cpu_s(self._pid)

    def watch_members(self) -> None:
        """What was seen before of its processes counts for nothing."""
        self._seen = set()

    @property
    def comes_and_goes(self) -> bool:
        """Whether many of its processes have ended that were seen when `cpu_s` was asked for, in others' turns: those
        that its own calls start and wait for are not."""
        return len(self._seen - set(members(self._pid))) >= _MANY_ENDED

    def excess(self, allowed_bytes: int) -> tuple[str, str] | None:
        """What the processes of the cell take beyond their limits: reason and summary; None where they keep them."""
        processes = descendants(self._pid)
        if len(processes) > _MAX_PROCESSES:
            return "too_many_processes", f"it started {len(processes)} processes, and {_MAX_PROCESSES} are allowed"
        used, allowed = private_bytes(processes), allowed_bytes
        if used > allowed and len(processes) <= _FEW_PROCESSES:
            used = held_bytes(processes)
        if len(processes) <= _FEW_PROCESSES:
            used += shared_bytes(processes, known=self.arenas)
        if used > allowed:
            return "out_of_memory", f"its processes used {used / 2**30:.1f} GiB of {allowed / 2**30:.1f} allowed"
        return None
