"""What every engine owes a campaign: the fake one, the local one, and the one on a shared folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from fakes.engines import NODE, FakeEngine, Work, improved, seat
from tilewright.edges.bundle import SharedQueue
from tilewright.run.campaign import Campaign
from tilewright.run.cluster.campaign_worker import CampaignWorker
from tilewright.run.cluster.engine import Engine, Reported
from tilewright.run.cluster.local import LocalEngine
from tilewright.run.cluster.shared import SharedFolderEngine
from tilewright.run.cluster.task import ClusterNode, LostTask, TaskOrder, TaskResult

PATIENCE_S = 20.0


def order(name: str, **changed: int) -> TaskOrder:
    return TaskOrder(
        file=f"{name}.py", source="x = 1\n", verb="optimize", target="cpu", budget_s=9.0, budget="", settings=(),
        stamp="s", **changed,
    )  # fmt: skip


class Threads:
    """A launcher whose workers are threads of this process."""

    def __init__(self, queue: SharedQueue, names: tuple[str, ...], *, work: Work = improved) -> None:
        self.workers = [
            CampaignWorker(
                queue=queue, seat=seat(n, work=work), say=lambda text: None, beat_s=0.05, stop=lambda: None
            )
            for n in names
        ]  # fmt: skip
        self._threads = [Thread(target=w.serve, daemon=True) for w in self.workers]

    def start(self, busy: frozenset[str]) -> None:
        for thread in self._threads:
            thread.start()

    def keep(self) -> None: ...

    def queued(self) -> tuple[str, ...]:
        return ()

    def stop(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


EngineOf = Callable[[], Engine]


@pytest.fixture(params=["fake", "local", "shared"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    with ExitStack() as opened:
        if request.param == "fake":
            yield opened.enter_context(FakeEngine())
        elif request.param == "local":
            yield opened.enter_context(LocalEngine([seat("a:gpu0"), seat("b:gpu0")]))
        else:
            queue = SharedQueue(tmp_path / "queue")
            launcher = Threads(queue, ("a:gpu0", "b:gpu0"))
            yield opened.enter_context(SharedFolderEngine(queue=queue, launcher=launcher, beat_s=0.05))


def collected(engine: Engine, count: int, *, more_s: float = 0.3) -> list[Reported]:
    """So many reports, and what comes a little later."""
    found: list[Reported] = []
    ends_at = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < ends_at:
        found += engine.reports(0.1)
    ends_at = time.monotonic() + more_s
    while time.monotonic() < ends_at:
        found += engine.reports(0.05)
    return found


def test_each_order_is_done_once_however_often_it_is_submitted(engine: Engine) -> None:
    orders = [order(name) for name in "abcde"]
    for one in (*orders, *orders):
        engine.submit(one)
    found = collected(engine, 5)
    assert sorted(r.key for r in found) == sorted(o.key for o in orders)
    for result in found:
        assert isinstance(result, TaskResult) and not result.fault
        assert (result.node.device, result.node.driver, result.node.toolchain) == ("one GPU", "1", "torch 1")
        assert result.task["problem"] == result.key[0] and result.archive


def test_a_further_attempt_of_a_key_is_an_order_of_its_own(engine: Engine) -> None:
    engine.submit(order("a"))
    engine.submit(order("a").again())
    found = collected(engine, 2)
    assert [(r.key, r.attempt) for r in sorted(found, key=lambda r: r.attempt)] == [
        (order("a").key, 0), (order("a").key, 1),
    ]  # fmt: skip


def test_nodes_say_what_they_are(engine: Engine) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not engine.nodes() or any(n.state == "starting" for n in engine.nodes()):
        assert time.monotonic() < ends_at
        engine.reports(0.05)
    assert {n.device for n in engine.nodes()} == {"one GPU"}
    assert {n.state for n in engine.nodes()} == {"ready"}


def test_what_was_cancelled_before_it_began_is_not_done(tmp_path: Path) -> None:
    begun, go_on = Event(), Event()

    def work(campaign: Campaign, file: Path, place: object) -> dict[str, object]:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return improved(campaign, file, {})

    queue = SharedQueue(tmp_path / "queue")
    shared = SharedFolderEngine(queue=queue, launcher=Threads(queue, ("a:gpu0",), work=work), beat_s=0.05)
    for engine in (LocalEngine([seat(work=work)]), shared):
        begun.clear()
        go_on.clear()
        with engine:
            engine.submit(order("a"))
            assert begun.wait(PATIENCE_S)
            engine.submit(order("b"))
            engine.cancel(order("b").key)
            go_on.set()
            assert [r.key for r in collected(engine, 1)] == [order("a").key]


def test_a_sick_device_takes_no_more_orders_and_the_others_do_them() -> None:
    """The first task fails for no fault of its own; two calibrations fail then."""

    def work(campaign: Campaign, file: Path, place: object) -> dict[str, object]:
        return {"status": "failed", "whose": "machine", "verdict": {"summary": "CUDA error"}}

    sick = seat("sick:gpu0", work=work, failing=(False, True, True))
    with LocalEngine([sick]) as engine:
        engine.submit(order("a"))
        (result,) = collected(engine, 1)
        assert isinstance(result, TaskResult) and "an Xid" in result.fault
        (node,) = engine.nodes()
        assert (node.state, node.why) == ("quarantined", "calibration failed: an Xid")
        engine.submit(order("b"))
        assert collected(engine, 0) == []


def test_jobs_of_one_seat_run_side_by_side() -> None:
    both = [Event(), Event()]

    def work(campaign: Campaign, file: Path, place: object) -> dict[str, object]:
        mine, other = (both[0], both[1]) if file.stem == "a" else (both[1], both[0])
        mine.set()
        assert other.wait(PATIENCE_S)
        return improved(campaign, file, {})

    with LocalEngine([seat(work=work)], jobs=2) as engine:
        engine.submit(order("a"))
        engine.submit(order("b"))
        assert len(collected(engine, 2)) == 2


# ---- the shared folder


class Nobody:
    def start(self, busy: frozenset[str]) -> None:
        self.busy = busy

    def keep(self) -> None: ...

    def queued(self) -> tuple[str, ...]:
        return ()

    def stop(self) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_node_without_signs_of_life_loses_its_lease_and_what_it_had(tmp_path: Path) -> None:
    queue, clock = SharedQueue(tmp_path), Clock()
    engine = SharedFolderEngine(queue=queue, launcher=Nobody(), lease_s=90.0, clock=clock, sleep=clock.sleep)
    with engine:
        engine.submit(order("a"))
        queue.beat(NODE.name, NODE.dumps())
        assert queue.claim(order("a").name, NODE.worker)
        assert not queue.claim(order("a").name, "b:gpu0")
        for _ in range(10):  # while it gives signs, it may take its time
            clock.now += 60.0
            queue.beat(NODE.name, ClusterNode(**NODE.identity, beat=int(clock.now)).dumps())  # type: ignore[arg-type]
            assert engine.reports(0.0) == []
        queue.beat(NODE.name, NODE.dumps())
        assert engine.reports(0.0) == []
        clock.now += 91.0
        assert engine.reports(0.0) == [
            LostTask(key=order("a").key, attempt=0, node=NODE.name, why="no sign of life for 90 s")
        ]
        assert [n.state for n in engine.nodes()] == ["lost"]


def test_what_a_worker_had_that_was_started_anew_is_lost_at_once(tmp_path: Path) -> None:
    queue, clock = SharedQueue(tmp_path), Clock()
    with SharedFolderEngine(queue=queue, launcher=Nobody(), clock=clock, sleep=clock.sleep) as engine:
        engine.submit(order("a"))
        for node in (replace(NODE, pid=1), replace(NODE, pid=2)):
            queue.beat(NODE.name, node.dumps())
            queue.claim(order("a").name, node.worker)
            found = engine.reports(0.0)
            assert (found == []) == (node.pid == 1)
        assert isinstance(found[0], LostTask) and found[0].why == "its worker was started anew"


def test_a_device_has_one_worker_of_campaigns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path))
    first, second = seat(), seat()
    for one in (first, second):
        one.target, one.place = "cuda", {"CUDA_VISIBLE_DEVICES": "3"}
    assert first.begin().state == "ready"
    node = second.begin()
    assert (node.state, node.why) == ("quarantined", "another worker of a campaign has this device")
    first.close()
    third = seat()
    third.target, third.place = "cuda", {"CUDA_VISIBLE_DEVICES": "3"}
    assert third.begin().state == "ready"
    third.close()


def test_a_driver_that_comes_again_keeps_results_and_frees_what_the_dead_had(tmp_path: Path) -> None:
    queue, clock = SharedQueue(tmp_path), Clock()
    done, dead = order("done"), order("dead")
    with SharedFolderEngine(queue=queue, launcher=Nobody(), clock=clock, sleep=clock.sleep) as first:
        for one in (done, dead):
            first.submit(one)
            queue.beat(NODE.name, NODE.dumps())
            assert queue.claim(one.name, NODE.worker)
    result = TaskResult(key=done.key, attempt=0, node=NODE, task={"status": "improved"}, wall_s=1.0)
    queue.reply(done.name, result.dumps())
    with SharedFolderEngine(queue=queue, launcher=Nobody(), clock=clock, sleep=clock.sleep) as second:
        for one in (done, dead):
            second.submit(one)
        assert second.reports(0.0) == [result]
        assert queue.waiting() == (dead.name,)


def test_a_driver_that_comes_again_keeps_nodes_that_live(tmp_path: Path) -> None:
    queue, launcher = SharedQueue(tmp_path), Nobody()
    over = Event()

    def live() -> None:
        beat = 0
        while not over.wait(0.02):
            beat += 1
            queue.beat(NODE.name, ClusterNode(**NODE.identity, state="ready", beat=beat).dumps())  # type: ignore[arg-type]

    node = Thread(target=live)
    node.start()
    try:
        queue.post(order("a").name, order("a").dumps())
        queue.claim(order("a").name, NODE.worker)
        time.sleep(0.1)
        with SharedFolderEngine(queue=queue, launcher=launcher, beat_s=1.0) as engine:
            assert launcher.busy == {"a"}
            engine.submit(order("a"))
            assert queue.waiting() == ()  # it is still at work on it
    finally:
        over.set()
        node.join()


def test_a_worker_leaves_where_its_driver_gives_no_sign_of_life(tmp_path: Path) -> None:
    queue = SharedQueue(tmp_path)
    queue.beat("driver", "1")
    said: list[str] = []
    worker = CampaignWorker(
        queue=queue, seat=seat(), say=said.append, beat_s=0.05, alone_s=0.3, stop=lambda: None
    )  # fmt: skip
    assert worker.serve() == 0
    assert said[-1] == "the campaign's driver gives no sign of life; leaving"
    assert [ClusterNode.loads(text).state for text in queue.signs().values()] == ["left"]


def test_what_is_no_order_is_answered_as_a_fault_and_the_next_is_done(tmp_path: Path) -> None:
    queue = SharedQueue(tmp_path)
    queue.post("bad-0.0", "{}")
    queue.post(order("a").name, order("a").dumps())
    launcher = Threads(queue, ("a:gpu0",))
    launcher.start(frozenset())
    try:
        ends_at = time.monotonic() + PATIENCE_S
        while queue.result(order("a").name) is None:
            assert time.monotonic() < ends_at
            time.sleep(0.02)
    finally:
        queue.set_over(True)
        launcher.stop()
    bad = TaskResult.loads(queue.result("bad-0.0") or "")
    assert bad.fault.startswith("ValueError: not a TaskOrder") and bad.task == {}
