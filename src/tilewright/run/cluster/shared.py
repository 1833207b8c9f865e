"""The engine on a folder that machines share, for workers that Slurm or ssh starts: see `edges.bundle.queue`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from ...edges.bundle import SharedQueue
from ...edges.bundle.queue import DRIVER
from .engine import Reported
from .task import ClusterNode, LostTask, TaskOrder, TaskResult

BEAT_S = 5.0  # between two signs of life
LEASE_S = 90.0  # without a change of a node's sign, after which what it had is done elsewhere; NFS may cache for 60 s
_POLL_S = 0.2
_KEEP_S = 10.0  # between two looks at the workers that were started


class Launcher(Protocol):
    """Starts workers on other machines, which find the campaign's folder under the same path."""

    def start(self, busy: frozenset[str]) -> None:
        """Start what is wanted; `busy` are the hosts on which nodes live already."""

    def keep(self) -> None:
        """Start those again that have ended, each a few times at most."""

    def queued(self) -> tuple[str, ...]:
        """Names of those that wait for a machine."""

    def stop(self) -> None:
        """End all that were started."""


@dataclass(kw_only=True)
class _Seen:
    """A node as the driver last saw it, and when its sign last changed by the driver's clock."""

    text: str
    changed_at: float
    node: ClusterNode
    lives: bool = False  # whether its sign has changed since this driver began to watch


@dataclass(kw_only=True)
class SharedFolderEngine:
    """Orders are claimed by whichever node is free. A node whose sign of life stands still for `lease_s` is lost."""

    queue: SharedQueue
    launcher: Launcher
    beat_s: float = BEAT_S
    lease_s: float = LEASE_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _open: dict[str, TaskOrder] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _stale: dict[str, str] = field(default_factory=dict)  # the last signs of nodes that were gone before
    _beats: int = 0
    _beat_at: float = float("-inf")
    _kept_at: float = 0.0

    def __enter__(self) -> Self:
        """Nodes that an earlier driver left at work are kept; what lost ones had claimed is free again."""
        self.queue.set_over(False)
        self._beat()
        self._look()
        waited = 0.0
        while waited < 3 * self.beat_s and any(not s.lives and s.node.state != "left" for s in self._seen.values()):
            self.sleep(_POLL_S)
            waited += _POLL_S
            self._look()
        lives = {seen.node.worker for seen in self._seen.values() if seen.lives}
        for name in self.queue.names():
            if self.queue.claimant(name) not in lives and self._result(name) is None:
                self.queue.remove(name)
        self._stale = {name: seen.text for name, seen in self._seen.items() if not seen.lives}
        self._seen = {name: seen for name, seen in self._seen.items() if seen.lives}
        self.launcher.start(frozenset(seen.node.host for seen in self._seen.values()))
        self._kept_at = self.clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.set_over(True)
        self.launcher.stop()

    def submit(self, order: TaskOrder) -> None:
        if order.name not in self._known:
            self._known.add(order.name)
            self._open[order.name] = order
            self.queue.post(order.name, order.dumps())

    def cancel(self, key: str) -> None:
        for name in [name for name, order in self._open.items() if order.key == key]:
            if self.queue.claim(name, DRIVER):
                del self._open[name]

    def reports(self, timeout_s: float) -> Sequence[Reported]:
        ends_at = self.clock() + timeout_s
        while True:
            found = self._reports()
            if found or self.clock() >= ends_at:
                return found
            self.sleep(min(_POLL_S, timeout_s))

    def nodes(self) -> tuple[ClusterNode, ...]:
        queued = tuple(ClusterNode(name=f"queued {name}", host="") for name in self.launcher.queued())
        return (*(seen.node for seen in self._seen.values()), *queued)

    def _reports(self) -> list[Reported]:
        self._beat()
        self._look()
        if self.clock() - self._kept_at > _KEEP_S:
            self._kept_at = self.clock()
            self.launcher.keep()
        found: list[Reported] = []
        for name, order in list(self._open.items()):
            result = self._result(name)
            report = result or self._lost(name, order)
            if report is not None:
                found.append(report)
                del self._open[name]
        return found

    def _result(self, name: str) -> TaskResult | None:
        text = self.queue.result(name)
        if text is not None:
            with suppress(ValueError):
                return TaskResult.loads(text)
        return None

    def _lost(self, name: str, order: TaskOrder) -> LostTask | None:
        worker = self.queue.claimant(name)
        node = worker.rpartition("@")[0]
        seen = self._seen.get(node)
        if seen is None:
            return None
        why = "its worker was started anew" if seen.node.worker != worker else seen.node.why or "left"
        if seen.node.worker == worker and seen.node.state not in ("lost", "left"):
            return None
        return LostTask(key=order.key, attempt=order.attempt, node=node, why=why)

    def _look(self) -> None:
        now = self.clock()
        for name, text in self.queue.signs().items():
            seen = self._seen.get(name)
            if self._stale.get(name) == text:
                continue
            if seen is None or seen.text != text:
                with suppress(ValueError):
                    node = ClusterNode.loads(text)
                    self._seen[name] = _Seen(text=text, changed_at=now, node=node, lives=seen is not None)
            elif now - seen.changed_at > self.lease_s and seen.node.state in ("starting", "ready"):
                seen.node = replace(seen.node, state="lost", why=f"no sign of life for {self.lease_s:.0f} s")

    def _beat(self) -> None:
        if self.clock() - self._beat_at >= self.beat_s:
            self._beat_at = self.clock()
            self._beats += 1
            self.queue.beat(DRIVER, str(self._beats))
