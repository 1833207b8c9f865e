"""Kernels are built for orders that wait, by tasks beside what measures, and go to the actor with the order."""

from __future__ import annotations

import io
import json
import queue
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fakes.engines import NODE, seat
from tilewright.facts.errors import HarnessError
from tilewright.run.cluster import building, ray_nodes
from tilewright.run.cluster.building import is_worth_it, kernels_of, take
from tilewright.run.cluster.ray_nodes import RayNodes
from tilewright.run.cluster.seat import archived
from tilewright.run.cluster.task import BegunRun, TaskOrder

ORDER = TaskOrder(
    file="t.py", source="", verb="optimize", target="cpu", budget_s=1.0, budget="", settings=(), stamp="s"
)


NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="no Ray: an actor's node is named in its own words")


class RayError(Exception):
    pass


class FakeRay:
    """Ray with one node and one actor; tasks and methods are done when they are asked for, an actor's `run` only when
    it is told to go on. References are numbers."""

    class exceptions:
        RayError = RayError

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.held: list[tuple[int, tuple[Any, ...]]] = []
        self.options_of: list[dict[str, Any]] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {}, "NodeManagerHostname": "a", "NodeID": "1f" * 28}]

    def remote(self, what: Any) -> Any:
        return _Remote(self, what)

    def get(self, reference: int) -> Any:
        value = self.done[reference]
        if isinstance(value, RayError):
            raise value
        return value

    def wait(self, references: Sequence[int], **_: Any) -> tuple[list[int], list[int]]:
        return [r for r in references if r in self.done][:1], []

    def kill(self, actor: Any) -> None:
        raise AssertionError

    def new(self, value: Any = None, *, is_done: bool = True) -> int:
        number = len(self.options_of) * 1000 + len(self.done) + len(self.held) + 1
        while number in self.done:
            number += 1
        if is_done:
            self.done[number] = value
        return number


class _Remote:
    def __init__(self, ray: FakeRay, what: Any) -> None:
        self.ray, self.what = ray, what

    def options(self, **options: Any) -> _Remote:
        self.ray.options_of.append(options)
        return self

    def remote(self, *given: Any) -> Any:
        if isinstance(self.what, type):
            return _Actor(self.ray)
        try:
            return self.ray.new(self.what(*given))
        except ValueError as error:
            return self.ray.new(RayError(str(error)))


class _Actor:
    def __init__(self, ray: FakeRay) -> None:
        self.begin = _Method(lambda: ray.new(NODE.dumps()))
        self.live = _Method(lambda: -1)
        self.run = _Method(lambda *given: self._held(ray, given))

    @staticmethod
    def _held(ray: FakeRay, given: tuple[Any, ...]) -> int:
        number = 500 + len(ray.held)
        ray.held.append((number, given))
        return number


class _Method:
    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


def served(build: Callable[[str, str], bytes], *, ahead: bool = True) -> tuple[FakeRay, list[tuple[str, bytes]]]:
    """Three orders for one actor, one after another: what it was given of each, and the kernels with it."""
    ray, commands, given = FakeRay(), queue.Queue[Any](), list[tuple[str, bytes]]()
    for name in ("a", "b", "c"):
        commands.put({"order": replace(ORDER, file=f"{name}.py").dumps()})
    nodes = RayNodes(ray=ray, target="cpu", jobs=1, out=io.StringIO(), commands=commands, ahead=ahead, build=build)
    answered = 0
    sleeping = seat()
    sleeping.begin()

    def obeyed() -> bool:
        nonlocal answered
        if len(given) > answered:  # what it has is done now
            number, (order, _) = ray.held[answered]
            ray.done[number] = [sleeping.run(TaskOrder.loads(order)).dumps(), NODE.dumps()]
            answered += 1
        for _, (order, kernels) in ray.held[len(given) :]:
            whole = ray.get(kernels) if isinstance(kernels, int) else kernels
            given.append((json.loads(order)["file"], whole))
        return answered < 3

    own = nodes._obey
    turns = iter(range(200))
    nodes._obey = lambda: own() and (next(turns) % 8 != 7 or obeyed())  # type: ignore[method-assign]
    nodes.serve()
    return ray, given


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_nodes, "_WAIT_S", 0.0)


@NEEDS_RAY
def test_what_waits_is_built_ahead_for_the_device_that_is_there_and_goes_to_the_actor() -> None:
    asked: list[tuple[str, str]] = []

    def build(order: str, device: str) -> bytes:
        asked.append((json.loads(order)["file"], device))
        if len(asked) == 2:
            raise ValueError("no compiler")
        return f"kernels of {asked[-1][0]}".encode()

    ray, given = served(build)
    assert asked == [("b.py", "one GPU"), ("c.py", "one GPU")], "the first one's node was free at once"
    assert given == [("a.py", b""), ("b.py", b"kernels of b.py"), ("c.py", b"")], "a build that fails is none"
    tasks = [o for o in ray.options_of if "max_retries" in o]
    assert len(tasks) == 2 and all(o["num_cpus"] == 1 and o["scheduling_strategy"] == "SPREAD" for o in tasks)


@NEEDS_RAY
def test_nothing_is_built_ahead_where_processors_measure() -> None:
    def build(order: str, device: str) -> bytes:
        raise AssertionError

    _, given = served(build, ahead=False)
    assert [kernels for _, kernels in given] == [b"", b"", b""]


def test_what_has_no_kernels_before_it_begins_is_not_built_ahead() -> None:
    assert is_worth_it(ORDER) and is_worth_it(replace(ORDER, settings=("--strategy", "fact")))
    assert not is_worth_it(replace(ORDER, verb="audit"))
    assert not is_worth_it(replace(ORDER, begun=BegunRun(machine="m", archive=b"")))
    assert not is_worth_it(replace(ORDER, settings=("--evaluator", "bundle:x")))
    assert not is_worth_it(replace(ORDER, settings=("--without", "tuning")))


def test_an_archive_of_kernels_is_unpacked_and_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "k.so").write_bytes(b"code")
    take(archived(tmp_path / "made"), tmp_path / "cache" / "libraries")
    assert (tmp_path / "cache" / "libraries" / "k.so").read_bytes() == b"code"
    with pytest.raises(HarnessError, match="can't be unpacked"):
        take(b"no archive", tmp_path / "cache" / "libraries")


def test_for_a_gpu_that_nobody_has_described_nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "tune_ahead", None)
    assert kernels_of(replace(ORDER, target="cuda"), "NVIDIA Something", say=print) == b""
