"""Ray's side of a campaign, in a process of its own: a measuring actor for each GPU (or each node's CPU), given orders
as they become free. Orders come as lines on standard input, reports go as lines to standard output.

Ray ends a process whose head is gone, and takes over its signals: neither may happen to the driver of a campaign."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from ...facts.problem import Target
from .building import built, is_worth_it, taken
from .seat import Seat, here
from .task import ClusterNode, LostTask, TaskOrder

_LOOK_S = 1.0  # between two looks at the cluster's nodes, and signs of life
_WAIT_S = 0.2
_MOST_DEATHS = 3  # of actors in one place, after which it is left alone
_AUTO = "auto"


class SeatActor:
    """The actor: one Seat, in a process that Ray has given a GPU, or none. The methods take and give text."""

    def __init__(self, name: str, target: Target) -> None:
        _forget_ray_threads()
        node = here(name)
        self._seat = Seat(node=replace(node, name=name), target=target)

    def begin(self) -> str:
        return self._seat.begin().dumps()

    def live(self) -> None:
        """Never returns: that it fails tells of the actor's end, though it has no order."""
        threading.Event().wait()

    def run(self, order: str, kernels: bytes) -> list[str]:
        """`kernels`: what was compiled for the order ahead, as an archive."""
        taken(kernels)
        result = self._seat.run(TaskOrder.loads(order)).dumps()
        return [result, self._seat.node.dumps()]


def _forget_ray_threads() -> None:
    """Ray sets the number of threads to that of an actor's processors; tasks use as many as the node's user wants."""
    try:
        outer = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        outer = []
    named = [v for v in outer if v.startswith(b"OMP_NUM_THREADS=")]
    os.environ.pop("OMP_NUM_THREADS", None)
    if named:
        os.environ["OMP_NUM_THREADS"] = named[0].partition(b"=")[2].decode()


@dataclass(kw_only=True)
class _Place:
    """Where an actor stands, and how many orders it has."""

    node_id: str
    actor: Any
    node: ClusterNode
    busy: int = 0


@dataclass(kw_only=True)
class RayNodes:
    """The loop of the process. `ray` is the module, connected to a cluster. `ahead`: whether kernels of orders that
    wait are compiled by tasks on the cluster's processors, one a node, while others measure; they go to the actor with
    the order."""

    ray: Any
    target: Target
    jobs: int
    out: TextIO
    commands: queue.Queue[dict[str, Any] | None]
    ahead: bool = False
    build: Callable[[str, str], bytes] = built
    _places: dict[str, _Place] = field(default_factory=dict)
    _gone: dict[str, ClusterNode] = field(default_factory=dict)
    _deaths: dict[str, int] = field(default_factory=dict)
    _waiting: list[TaskOrder] = field(default_factory=list)
    _running: dict[Any, tuple[str, TaskOrder | None]] = field(default_factory=dict)  # by Ray's reference
    _builds: dict[Any, str] = field(default_factory=dict)  # by Ray's reference, the order whose kernels it compiles
    _built: dict[str, Any] = field(default_factory=dict)  # the references that are done, by the order
    _hosts: int = 0
    _looked_at: float = float("-inf")

    def serve(self) -> None:
        """Until the standard input ends."""
        while self._obey():
            if time.monotonic() - self._looked_at >= _LOOK_S:
                self._looked_at = time.monotonic()
                self._look()
                self._tell(nodes=[n.dumps() for n in (*(p.node for p in self._places.values()), *self._gone.values())])
            self._give()
            self._build()
            self._collect()

    def _obey(self) -> bool:
        while not self.commands.empty():
            command = self.commands.get()
            if command is None:
                return False
            if "order" in command:
                order = TaskOrder.loads(command["order"])
                self._waiting.insert(0 if order.attempt else len(self._waiting), order)
            if "cancel" in command:
                self._waiting = [order for order in self._waiting if order.key != command["cancel"]]
        return True

    def _look(self) -> None:
        """An actor for each place that has none; those of nodes that are gone are lost."""
        alive: dict[str, tuple[str, int]] = {}
        self._hosts = 0
        for found in self.ray.nodes():
            if found["Alive"]:
                self._hosts += 1
                count = int(found["Resources"].get("GPU", 0)) if self.target == "cuda" else 1
                for number in range(count):
                    kind = f"gpu{number}" if self.target == "cuda" else "cpu"
                    alive[f"{found['NodeManagerHostname']}-{found['NodeID'][:6]}:{kind}"] = (found["NodeID"], number)
        for name in [n for n in self._places if n not in alive]:
            self._lose(name, "its node is gone")
        for name, (node_id, _) in alive.items():
            if name not in self._places and self._deaths.get(name, 0) < _MOST_DEATHS:
                self._begin(name, node_id)

    def _begin(self, name: str, node_id: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = self.ray.remote(SeatActor).options(
            num_cpus=0, num_gpus=1 if self.target == "cuda" else 0, max_concurrency=self.jobs + 2,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
        ).remote(name, self.target)  # fmt: skip
        node = ClusterNode(name=name, host=name.rpartition("-")[0])
        self._gone.pop(name, None)
        self._places[name] = _Place(node_id=node_id, actor=actor, node=node)
        self._running[actor.begin.remote()] = (name, None)
        self._running[actor.live.remote()] = (name, None)

    def _give(self) -> None:
        for name, place in self._places.items():
            while self._waiting and place.node.state == "ready" and place.busy < self.jobs:
                order = next((o for o in self._waiting if o.key in self._built), self._waiting[0])
                self._waiting.remove(order)
                place.busy += 1
                kernels = self._built.pop(order.key, b"")
                self._running[place.actor.run.remote(order.dumps(), kernels)] = (name, order)

    def _build(self) -> None:
        """Tasks for orders that wait, for the device of the first node that is ready."""
        device = next((p.node.device for p in self._places.values() if p.node.state == "ready"), "")
        begun = {*self._builds.values(), *self._built}
        todo = [o for o in self._waiting if o.key not in begun and is_worth_it(o)] if self.ahead and device else []
        for order in todo[: self._hosts - len(self._builds)]:
            task = self.ray.remote(self.build).options(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
            self._builds[task.remote(order.dumps(), device)] = order.key

    def _collect(self) -> None:
        if not self._running:
            time.sleep(_WAIT_S)
            return
        done, _ = self.ray.wait([*self._running, *self._builds], num_returns=1, timeout=_WAIT_S)
        for reference in done:
            if reference in self._builds:
                self._keep_build(reference)
                continue
            name, order = self._running.pop(reference, ("", None))
            try:
                found = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                why = " ".join(str(error).split())[:200]
                if order is not None:
                    self._tell_lost(order, name, why)
                self._lose(name, why)
                continue
            place = self._places.get(name)
            if order is None and place is not None:
                place.node = ClusterNode.loads(found)
                self._looked_at = float("-inf")  # what it is will be told at once
            elif order is not None:
                if place is not None:
                    place.busy -= 1
                    place.node = ClusterNode.loads(found[1])
                self._tell(result=found[0])

    def _keep_build(self, reference: Any) -> None:
        """A build that failed is as good as none: its task compiles what it needs."""
        key = self._builds.pop(reference)
        try:
            self.ray.get(reference)
        except self.ray.exceptions.RayError:
            reference = b""
        if any(order.key == key for order in self._waiting):
            self._built[key] = reference

    def _lose(self, name: str, why: str) -> None:
        """The place's actor is gone, and so is what it had."""
        place = self._places.pop(name, None)
        if place is None:
            return
        self._deaths[name] = self._deaths.get(name, 0) + 1
        self._gone[name] = replace(place.node, state="lost", why=why)
        for reference in [r for r, (where, _) in self._running.items() if where == name]:
            _, order = self._running.pop(reference)
            if order is not None:
                self._tell_lost(order, name, why)
        self.ray.kill(place.actor)

    def _tell_lost(self, order: TaskOrder, name: str, why: str) -> None:
        lost = LostTask(key=order.key, attempt=order.attempt, node=name, why=why)
        self._tell(lost=[lost.key, lost.attempt, lost.node, lost.why])

    def _tell(self, **told: object) -> None:
        self.out.write(json.dumps(told) + "\n")
        self.out.flush()


def _read(commands: queue.Queue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put(None)


def main(*, ahead: bool = False, build: Callable[[str, str], bytes] = built) -> int:
    """`ADDRESS TARGET JOBS`: "auto" finds the cluster of this machine, or starts one. `ahead`: kernels for CPUs are
    compiled ahead, too, by `build`."""
    address, target, jobs = sys.argv[1:4]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints goes to the log
    import ray

    try:
        ray.init(address=address, log_to_driver=False)
    except Exception as error:  # whatever keeps us from it, such as another version of Python there
        if address != _AUTO or not isinstance(error, ConnectionError):
            out.write(json.dumps({"refused": " ".join(str(error).split())[:300]}) + "\n")
            out.flush()
            return 3
        ray.init(log_to_driver=False, include_dashboard=False)
    commands: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_read, args=(commands,), daemon=True).start()
    RayNodes(
        ray=ray, target="cuda" if target == "cuda" else "cpu", jobs=int(jobs), out=out, commands=commands,
        build=build, ahead=ahead or target == "cuda",  # of CPUs all measure: who compiles there disturbs
    ).serve()  # fmt: skip
    ray.shutdown()
    return 0
