"""The engine on Ray, as the driver of a campaign sees it: a child process speaks with Ray, see `ray_nodes`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, Self

from ...edges.sandbox.offspring import offspring
from ...facts.errors import UserError
from ...facts.problem import Target
from .engine import EngineGone, Reported
from .task import ClusterNode, LostTask, TaskOrder, TaskResult

_MAIN = "from tilewright.run.cluster.ray_nodes import main; raise SystemExit(main())"
_GRACE_S = 10.0
_SILENCE_S = 90.0  # of the child, whose signs of life stop where Ray's head does not answer


class RayEngine:
    """`address` as `ray.init` takes it. `log`: where what Ray prints goes. `program`: Python text
    of the child. UserError where Ray is not installed."""

    def __init__(
        self, address: str, *, target: Target, jobs: int, log: Path, silence_s: float = _SILENCE_S,
        program: str = _MAIN, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        needed = ("ray", "grpc") if address.startswith("ray://") else ("ray",)  # Ray's client needs both
        if any(importlib.util.find_spec(name) is None for name in needed):
            raise UserError("--cluster: Ray is not installed; pip install tilewright[cluster]")
        self._command = [sys.executable, "-c", program, address, target, str(jobs)]
        self._address, self._log, self._silence_s, self._clock = address, log, silence_s, clock
        self._open = ExitStack()
        self._known: set[str] = set()
        self._lines: Queue[dict[str, Any] | None] = Queue()
        self._nodes: tuple[ClusterNode, ...] = ()
        self._heard_at = clock()

    def __enter__(self) -> Self:
        log = self._open.enter_context(self._log.open("ab"))
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
        given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True, "env": environment}
        self._child = self._open.enter_context(offspring(self._command, polite=True, **given))
        Thread(target=self._read, daemon=True).start()
        self._heard_at = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        """The child ends as its input does; its reader thread has the pipe, so that it is waited for here."""
        assert self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._open.close()

    def submit(self, order: TaskOrder) -> None:
        if order.name not in self._known:
            self._known.add(order.name)
            self._say(order=order.dumps())

    def cancel(self, key: str) -> None:
        self._say(cancel=key)

    def reports(self, timeout_s: float) -> Sequence[Reported]:
        found: list[Reported] = []
        ends_at = self._clock() + timeout_s
        while not found and (left_s := ends_at - self._clock()) > 0:
            with suppress(Empty):
                self._take(self._lines.get(timeout=left_s), found)
            while not self._lines.empty():
                self._take(self._lines.get(), found)
            if self._clock() - self._heard_at > self._silence_s:
                raise self._gone(f"has not answered for {self._silence_s:.0f} s")
        return found

    def nodes(self) -> tuple[ClusterNode, ...]:
        return self._nodes

    def _take(self, line: dict[str, Any] | None, found: list[Reported]) -> None:
        if line is None:
            if found:  # what came before counts
                self._lines.put(None)
                return
            raise self._gone("is gone")
        self._heard_at = self._clock()
        if "nodes" in line:
            self._nodes = tuple(map(ClusterNode.loads, line["nodes"]))
        if "result" in line:
            found.append(TaskResult.loads(line["result"]))
        if "lost" in line:
            key, attempt, node, why = line["lost"]
            found.append(LostTask(key=key, attempt=attempt, node=node, why=why))
        if "refused" in line:
            raise UserError(f"--cluster: no Ray cluster answers at {self._address}: {line['refused']}")

    def _gone(self, how: str) -> EngineGone:
        return EngineGone(f"Ray at {self._address} {how} ({self._log} holds what it said)")

    def _say(self, **told: str) -> None:
        with suppress(OSError):  # that it is gone is said by `reports`
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(told) + "\n")
            self._child.stdin.flush()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            with suppress(ValueError):
                self._lines.put(json.loads(line))
        self._lines.put(None)
