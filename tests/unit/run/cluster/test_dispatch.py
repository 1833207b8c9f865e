"""A campaign over an engine that loses, repeats and mixes up: every task has one verdict, and none two."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.engines import NODE, FakeEngine, seat
from fakes.facts import MACHINE, context
from tilewright.edges.ledger import Ledger
from tilewright.facts.errors import Lack, Pending, TooBusy, UserError
from tilewright.run import campaign as pool
from tilewright.run.campaign import Campaign, run_campaign
from tilewright.run.cluster.dispatch import Dispatch
from tilewright.run.cluster.seat import archived, unpacked
from tilewright.run.cluster.task import BegunRun, TaskOrder, TaskResult


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    files = tuple(tmp_path / f"{name}.py" for name in "abc")
    for file in files:
        file.write_text(f"# {file.stem}\n")
    return Campaign(
        files=files, out=tmp_path / "out", target="cpu", budget_s=9.0, settings=("--seed", "0"), jobs=1, devices=(),
        stamp="0.1.0 abc",
    )  # fmt: skip


def dispatch(campaign: Campaign, engine: FakeEngine, **changed: Any) -> Dispatch:
    return Dispatch(engine=engine, lines=campaign.out / "results.jsonl", say=lambda text: None, **changed)


def lines(campaign: Campaign) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (campaign.out / "results.jsonl").read_text().splitlines()]


def ran(campaign: Campaign, engine: FakeEngine) -> tuple[dict[str, Any], ...]:
    seen: list[str] = []
    tasks = dispatch(campaign, engine).run(campaign, seen=lambda task: seen.append(task["file"]))
    assert sorted(seen) == [f.name for f in campaign.files] == [t["file"] for t in tasks]
    assert sorted(line["file"] for line in lines(campaign)) == [f.name for f in campaign.files]
    return tasks


def test_each_result_is_kept_with_its_node_and_its_runs_folder(campaign: Campaign) -> None:
    tasks = ran(campaign, FakeEngine())
    assert [t["status"] for t in tasks] == ["improved"] * 3
    assert tasks[0]["node"] == NODE.identity and tasks[0]["attempt"] == 0
    assert tasks[0]["candidate"] == str(campaign.out / "a" / "candidate")
    assert tasks[0]["notes"] == [f"{campaign.files[0]}: read"]
    assert (campaign.out / "a" / "run.db").read_text() == "journal"
    again = FakeEngine()
    assert ran(campaign, again) == tasks and again.submitted == []
    assert run_campaign(campaign, seen=lambda task: None) == tasks, "the local pool takes it as its own"


def test_what_a_node_took_with_it_is_done_once_more_and_once_only(campaign: Campaign) -> None:
    engine = FakeEngine(lose=lambda order: order.file == "b.py" and not order.attempt)
    assert [(t["status"], t["attempt"]) for t in ran(campaign, engine)] == [
        ("improved", 0), ("improved", 1), ("improved", 0),
    ]  # fmt: skip
    campaign = replace(campaign, stamp="0.1.0 def", out=campaign.out.with_name("other"))
    engine = FakeEngine(lose=lambda order: order.file == "b.py")
    lost = ran(campaign, engine)[1]
    assert (lost["status"], lost["whose"], lost["verdict"]["reason"]) == ("failed", "machine", "lost")
    assert lost["verdict"]["summary"] == "a:gpu0: killed"
    assert [o.attempt for o in engine.submitted if o.file == "b.py"] == [0, 1]


def test_a_result_that_comes_twice_counts_once(campaign: Campaign) -> None:
    ran(campaign, FakeEngine(twice=True))


def test_a_late_result_of_a_node_that_was_given_up_counts_and_the_other_attempt_does_not(campaign: Campaign) -> None:
    """The engine gives the first attempt of b up, and has its result all the same behind the second's submission."""

    class Late(FakeEngine):
        def reports(self, timeout_s: float) -> Any:
            found = super().reports(timeout_s)
            if found and found[0].key.startswith("b-") and found[0].attempt == 0:
                self._seat.work = seat().work
                late = self._seat.run(self.submitted[-1] if self.submitted[-1].attempt else self.submitted[1])
                return [*found, replace(late, node=NODE, attempt=0)]
            return found

    engine = Late(lose=lambda order: order.file == "b.py" and not order.attempt)
    assert [t["attempt"] for t in ran(campaign, engine)] == [0, 0, 0]


def test_times_of_another_machine_do_not_count(campaign: Campaign) -> None:
    def elsewhere(result: TaskResult) -> TaskResult:
        if result.key.startswith("c-") and not result.attempt:
            return replace(result, task=result.task | {"machine": {"key": "other", "device": "another GPU"}})
        return result

    said: list[str] = []
    one = dispatch(campaign, FakeEngine(change=elsewhere))
    one.say = said.append
    tasks = one.run(campaign, seen=lambda task: None)
    assert [t["attempt"] for t in tasks] == [0, 0, 1]
    assert "c: a:gpu0: its times were measured on another machine, another GPU; once more elsewhere" in said


def test_a_driver_that_was_killed_goes_on_from_what_was_kept(campaign: Campaign) -> None:
    class Killed(Exception): ...

    def die(task: dict[str, Any]) -> None:
        if task["file"] == "b.py":
            raise Killed

    with pytest.raises(Killed):
        dispatch(campaign, FakeEngine()).run(campaign, seen=die)
    place = campaign.out / "results.jsonl"
    place.write_text(place.read_text().splitlines()[0] + '\n{"out": ')  # killed while it wrote the second line
    engine = FakeEngine()
    ran(campaign, engine)
    assert [o.file for o in engine.submitted] == ["c.py"]


def test_where_no_node_is_left_the_campaign_waits_for_the_next_call(campaign: Campaign) -> None:
    sick = FakeEngine(nodes=[replace(NODE, state="quarantined", why="an Xid")])
    with pytest.raises(Pending, match="3 tasks are left and no node is: a:gpu0: quarantined: an Xid"):
        dispatch(campaign, sick).run(campaign, seen=lambda task: None)
    lost = FakeEngine(nodes=[replace(NODE, state="lost", why="its node is gone")])
    clock = iter(range(10_000))
    with pytest.raises(Pending, match="lost: its node is gone"):
        dispatch(campaign, lost, patience_s=5.0, clock=lambda: float(next(clock))).run(campaign, seen=lambda t: None)
    ran(campaign, FakeEngine())


def test_seconds_add_up_by_node(campaign: Campaign) -> None:
    engine = FakeEngine(change=lambda result: replace(result, wall_s=2.0))
    one = dispatch(campaign, engine)
    one.run(campaign, seen=lambda task: None)
    (share,) = one.progress().shares
    assert (share.tasks, share.busy_s, share.device_s) == (3, 6.0, 0.75)


def test_replies_that_took_their_price_are_not_thrown_away(campaign: Campaign) -> None:
    asks = replace(campaign, settings=("--model", "openai:x"), files=campaign.files[:1])
    out = asks.out / "a"
    out.mkdir(parents=True)
    with Ledger(out / "run.db") as ledger:
        ledger.write(context())
    engine = FakeEngine()
    with pytest.raises(UserError, match="replies that took their price; choose another --out"):
        ran(asks, engine)
    (out / ".stamp").write_text(json.dumps(asks.made_by))
    dispatch(asks, engine, patience_s=0.0).run(asks, seen=lambda task: None)
    assert engine.submitted[0].begun is not None
    assert engine.submitted[0].begun.machine == MACHINE.key
    assert TaskOrder.loads(engine.submitted[0].dumps()) == engine.submitted[0]


# ---- seats


def done(
    work: Callable[..., dict[str, Any]], order: TaskOrder, *, failing: tuple[bool, ...] = (False,)
) -> tuple[TaskResult, str]:  # fmt: skip
    """The result, and the state of its node."""
    one = seat(work=work, failing=failing)
    one.begin()
    return one.run(order), one.node.state


@pytest.fixture
def order(campaign: Campaign) -> TaskOrder:
    return TaskOrder.of(campaign, campaign.files[0])


def failed(whose: str, summary: str = "exit 3") -> Callable[..., dict[str, Any]]:
    return lambda *_: {"status": "failed", "whose": whose, "verdict": {"summary": summary}}


def test_whose_fault_a_failed_task_is(order: TaskOrder) -> None:
    for whose in ("project", "machine"):
        well, state = done(failed(whose), order)
        assert (well.fault, state) == ("", "ready"), "the device calibrates: the task's failure stands"
        once, state = done(failed(whose), order, failing=(False, True))
        assert (once.fault, state) == ("calibration failed: an Xid", "ready")
        twice, state = done(failed(whose), order, failing=(False, True, True))
        assert (twice.fault, state) == ("calibration failed: an Xid", "quarantined")
    for whose in ("candidate", "problem"):  # nothing of theirs puts a device under quarantine
        assert done(failed(whose), order, failing=(False, True, True))[1] == "ready"


def test_a_busy_node_is_to_blame_and_stays(order: TaskOrder) -> None:
    said = f"exit 3: tilewright: {TooBusy('others had 1.8 processors')}"
    result, state = done(failed("project", said), order, failing=(False, True, True))
    assert (result.fault, state) == (said, "ready")


def test_what_a_machine_lacks_takes_it_out(order: TaskOrder) -> None:
    def lacks(*_: object) -> dict[str, Any]:
        raise Lack.of("nvcc", "not on PATH", "install it")

    result, state = done(lacks, order)
    assert result.fault.startswith("the machine lacks nvcc") and state == "quarantined"


def test_a_node_of_another_version_or_machine_does_nothing(order: TaskOrder) -> None:
    def never(*_: object) -> dict[str, Any]:
        raise AssertionError

    result, _ = done(never, replace(order, version="9.9"))
    assert "the driver 9.9" in result.fault
    result, _ = done(never, replace(order, begun=BegunRun(machine="other", archive=b"")))
    assert "another kind of machine" in result.fault


def test_a_run_that_began_goes_on_from_its_folder(order: TaskOrder, tmp_path: Path) -> None:
    began = tmp_path / "began"
    began.mkdir()
    (began / "run.db").write_text("so far")

    def work(campaign: Campaign, file: Path, place: object) -> dict[str, Any]:
        held = campaign.out / file.stem / "run.db"
        held.write_text(held.read_text() + ", and further")
        return {"status": "improved"}

    result, _ = done(work, replace(order, begun=BegunRun(machine="m", archive=archived(began))))
    unpacked(result.archive, tmp_path / "back")
    assert (tmp_path / "back" / "run.db").read_text() == "so far, and further"


def test_a_seat_runs_the_command_that_the_pool_would(
    order: TaskOrder, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def child(command: list[str], file: Path, place: object, **_: object) -> dict[str, Any]:
        commands.append([word for word in command if not word.startswith("/")])
        return {"problem": file.stem, "status": "improved"}

    monkeypatch.setattr(pool, "_child", child)
    result, _ = done(pool.run_task, order)
    assert result.task == {"problem": "a", "status": "improved"}
    run_campaign(replace(campaign, files=campaign.files[:1]), seen=lambda task: None)
    assert commands[0] == commands[1]


def test_orders_are_equal_by_content(campaign: Campaign, order: TaskOrder) -> None:
    assert TaskOrder.of(campaign, campaign.files[0]).key == order.key == order.again().key
    assert order.again().name != order.name
    campaign.files[0].write_text("# changed\n")
    changed = TaskOrder.of(campaign, campaign.files[0])
    others = (changed, replace(order, settings=("--seed", "1")), replace(order, stamp="x"), replace(order, budget="9s"))
    assert len({order.key, *(o.key for o in others)}) == 5
