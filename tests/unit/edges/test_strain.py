"""Whose load it is that a judgement had on its processors, and when that leaves no verdict."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tilewright.edges.sandbox import strain
from tilewright.edges.sandbox.strain import Books, Gauge, Strain, calm_within
from waiting import wait_until

BUSY = "while True: pass"
BEFORE = Books(
    at_s=0.0, used_s=0.0, stolen_s=0.0, ours={1: (0.0, 0.0)}, others={9: (0.0, 0.0)}, throttled_s=0.0, processors=2
)


def _after(**changed: object) -> Strain:
    return Strain.between(BEFORE, replace(BEFORE, at_s=10.0, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("books", "others"),
    [
        ({"used_s": 18.0, "ours": {1: (18.0, 0.0)}}, 0.0),
        ({"used_s": 18.0, "ours": {1: (8.0, 0.0)}, "others": {9: (10.0, 0.0)}}, 0.5),
        ({"used_s": 18.0, "ours": {1: (10.0, 0.0), 2: (8.0, 0.0)}}, 0.0),  # started since
        ({"used_s": 18.0, "ours": {1: (10.0, 8.0)}}, 0.0),  # ended since
        ({"used_s": 10.0, "ours": {1: (0.0, 300.0)}, "others": {9: (10.0, 0.0)}}, 0.5),  # ended, but ran long ago
        ({"used_s": 18.0, "ours": {1: (8.0, 0.0)}, "others": {9: (0.0, 10.0)}}, 0.5),  # a compiler's children
        ({"used_s": 12.0, "stolen_s": 4.0, "ours": {1: (8.0, 0.0)}}, 0.2),
        ({"used_s": 18.0, "ours": {1: (8.0, 0.0)}}, 0.5),  # another container's
        ({"used_s": 8.0, "ours": {1: (8.0, 0.0)}, "others": {9: (600.0, 0.0)}}, 0.0),  # on processors that aren't ours
        ({"used_s": 12.0, "ours": {1: (8.0, 0.0)}, "others": {9: (600.0, 0.0)}}, 0.2),  # on some of ours, too
        ({"used_s": 12.0, "ours": {1: (8.0, 300.0)}, "others": {9: (600.0, 0.0)}}, 0.2),  # ours that ended hide none
        ({"used_s": 12.0, "stolen_s": 4.0, "ours": {1: (8.0, 0.0)}, "others": {9: (600.0, 0.0)}}, 0.2),
        ({"others": {9: (10.0, 0.0)}}, 0.5),  # a kernel that counts nothing by processor
    ],
)
def test_what_others_had_is_told_by_whose_processes_they_are(books: dict[str, object], others: float) -> None:
    assert _after(**books).others == pytest.approx(others)


@pytest.mark.slow
def test_load_on_processors_that_we_may_not_use_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_TOGETHER", raising=False)
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one processor alone")
    command = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{allowed[0]}}})\n{BUSY}"]
    foreign = subprocess.run(
        ["setsid", "sh", "-c", 'exec "$@" >/dev/null 2>&1 & echo $!', "sh", *command], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    pid = int(foreign.stdout)
    try:
        wait_until(lambda: os.sched_getaffinity(pid) == {allowed[0]})
        os.sched_setaffinity(0, {allowed[1]})
        before = Books.now()
        wait_until(lambda: Books.now().others[pid][0] - before.others.get(pid, (0.0, 0.0))[0] > 0.5)
        after = Books.now()
        used_s = after.used_s - before.used_s
        told = Strain.between(before, after)
        assert told.processors == 1 and told.others * (after.at_s - before.at_s) <= used_s + 0.02
    finally:
        os.sched_setaffinity(0, set(allowed))
        os.kill(pid, 9)


def test_enough_is_what_those_need_who_are_measured() -> None:
    half = _after(used_s=18.0, ours={1: (8.0, 0.0)}, others={9: (10.0, 0.0)})
    assert half.starves(2) and not half.starves(1)
    assert not _after(used_s=18.0, ours={1: (15.0, 0.0)}, others={9: (3.0, 0.0)}).starves(2)
    assert _after(throttled_s=2.0).starves(1) and not _after(throttled_s=0.5).starves(2)


def test_a_candidates_own_processes_that_come_and_go_are_no_excuse() -> None:
    """Nobody waits for them, and no look at the processes meets one for long."""
    hidden = _after(used_s=18.0, ours={1: (2.0, 0.0)})
    assert hidden.starves(2) and not hidden.starves(2, comes_and_goes=True)
    seen = _after(used_s=18.0, ours={1: (2.0, 0.0)}, others={9: (16.0, 0.0)})
    assert seen.starves(2, comes_and_goes=True), "others are to blame all the same"
    assert not _after(throttled_s=9.0).starves(2, comes_and_goes=True)


def test_a_gauge_keeps_the_worst_part(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = replace(BEFORE, at_s=1.0, used_s=2.0, others={9: (2.0, 0.0)})
    calm = replace(busy, at_s=9.0)
    told = iter((BEFORE, busy, calm))
    monkeypatch.setattr(strain, "_LEAST_S", -1e9)
    gauge = Gauge(2, lambda: next(told))
    gauge.look()
    gauge.look()
    assert gauge.worst.others == 1.0 and gauge.starved()


def _gauge(monkeypatch: pytest.MonkeyPatch, *parts: tuple[float, float, float]) -> Gauge:
    """What it saw: `others`, `hidden` and `throttled` of each part."""
    told = iter(Strain(others=o, hidden=h, throttled=t, processors=2) for o, h, t in parts)
    monkeypatch.setattr(strain, "_LEAST_S", -1e9)
    monkeypatch.setattr(Strain, "between", lambda *_: next(told))
    gauge = Gauge(2, lambda: BEFORE)
    for _ in parts:
        gauge.look()
    return gauge


def test_a_part_that_a_quota_spoilt_is_not_hidden_by_a_busier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gauge = _gauge(monkeypatch, (0.05, 0.0, 0.9), (0.15, 0.0, 0.0))
    assert gauge.starved() and "a quota" in gauge.worst.told


def test_what_nobody_was_seen_to_use_hides_no_part_that_others_had(monkeypatch: pytest.MonkeyPatch) -> None:
    gauge = _gauge(monkeypatch, (0.3, 0.0, 0.0), (0.5, 0.5, 0.0))
    assert gauge.starved(comes_and_goes=True) and gauge.hidden == 1.0
    assert not _gauge(monkeypatch, (0.1, 0.0, 0.0), (0.5, 0.5, 0.0)).starved(comes_and_goes=True)


@pytest.mark.slow
def test_a_loop_of_somebody_elses_is_others_and_one_of_ours_is_ours() -> None:
    """Somebody else's leaves the tree: it is nobody's child that we know."""
    command = [sys.executable, "-c", BUSY]
    before = Books.now()
    with subprocess.Popen(command) as ours:
        time.sleep(1.0)
        own = Strain.between(before, Books.now())
        ours.kill()
    foreign = subprocess.run(
        ["setsid", "sh", "-c", f'"{sys.executable}" -c "{BUSY}" >/dev/null 2>&1 & echo $!'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    try:
        before, pid = Books.now(), int(foreign.stdout)
        wait_until(lambda: Books.now().others[pid][0] - before.others.get(pid, (0.0, 0.0))[0] > 0.2)
        after = Books.now()
        assert pid in after.others and after.others[pid][0] - before.others.get(pid, (0.0, 0.0))[0] > 0.1
        assert Strain.between(before, after).others > 0.05
    finally:
        os.kill(int(foreign.stdout), 9)
    assert ours.pid not in after.others and own.processors >= 1


def test_calm_is_waited_for_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [0.9, 0.9, 0.0]
    monkeypatch.setattr(strain, "_POLL_S", 0.01)
    monkeypatch.setattr(
        Strain, "between", lambda *_: Strain(others=told.pop(0), hidden=0.0, throttled=0.0, processors=2)
    )
    assert calm_within(5.0, 2) and not told
    told += [0.9] * 1000
    assert not calm_within(0.05, 2)
    monkeypatch.setattr(strain, "_POLL_S", 0.5)
    told[:] = [0.0]
    assert not calm_within(0.3, 2) and told, "too short a look tells nothing"


def test_judges_that_are_meant_to_share_a_machine_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TOGETHER", str(os.getppid()))
    assert os.getppid() in strain._ours() and os.getpid() in strain._ours()
    with subprocess.Popen(["sleep", "600"]) as stranger:
        monkeypatch.setenv("TILEWRIGHT_TOGETHER", str(stranger.pid))
        assert os.getpid() in strain._ours() and os.getppid() not in strain._ours(), "this is none of its processes"
        stranger.kill()
