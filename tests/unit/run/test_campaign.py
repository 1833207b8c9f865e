"""Many problems: what is kept counts for the same code and the same flags alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.facts.errors import UserError
from tilewright.run import campaign as module
from tilewright.run.campaign import Campaign, ended_badly, problem_files, run_campaign


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The commands of the tasks that were run; none of them is."""
    commands: list[Sequence[str]] = []

    def child(command: Sequence[str], file: Path, place: object, *, limit_s: float) -> dict[str, Any]:
        commands.append(command[3:])
        return {"problem": file.stem, "status": "improved"}

    monkeypatch.setattr(module, "_child", child)
    return commands


def test_numbers_choose_files_in_their_order(tmp_path: Path) -> None:
    for name in ("1_a", "2_b", "10_c", "10_d"):
        (tmp_path / f"{name}.py").touch()
    assert [f.stem for f in problem_files(str(tmp_path), (10, 7, 1))] == ["10_c", "10_d", "1_a"]
    assert [f.stem for f in problem_files(str(tmp_path), None)] == ["1_a", "2_b", "10_c", "10_d"]


def test_a_kept_result_counts_for_the_same_stamp_and_flags_alone(tmp_path: Path, started: list[Sequence[str]]) -> None:
    files = (tmp_path / "1_a.py", tmp_path / "2_b.py")
    campaign = Campaign(
        files=files, out=tmp_path / "out", target="cpu", budget_s=90.0, settings=("--timing", "2s"), jobs=1,
        devices=(), stamp="0.1.0 abc",
    )  # fmt: skip
    first = run_campaign(campaign, seen=lambda task: None)
    assert [t["problem"] for t in first] == ["1_a", "2_b"]
    out = str(tmp_path / "out" / "1_a")
    flags = ["--target", "cpu", "--budget", "90s", "--timing", "2s"]
    assert started[0] == ["optimize", str(files[0]), "--out", out, *flags, "--json"]
    assert run_campaign(campaign, seen=lambda task: None) == first
    assert len(started) == 2
    for other in (replace(campaign, stamp="0.1.0 def"), replace(campaign, settings=("--timing", "6s"))):
        run_campaign(other, seen=lambda task: None)
    assert len(started) == 6


def test_a_run_that_began_under_the_same_flags_is_continued(tmp_path: Path, started: list[Sequence[str]]) -> None:
    campaign = Campaign(
        files=(tmp_path / "1_a.py",), out=tmp_path / "out", target="cpu", budget_s=90.0, settings=(), jobs=1,
        devices=(), stamp="0.1.0 abc",
    )  # fmt: skip
    out = tmp_path / "out" / "1_a"
    for again, verb in ((campaign, "optimize"), (campaign, "resume"), (replace(campaign, budget_s=60.0), "optimize")):
        run_campaign(again, seen=lambda task: None)
        (tmp_path / "out" / "1_a.json").unlink()
        (out / "run.db").touch()
        assert started[-1][0] == verb


def test_what_broke_beside_others_is_tried_once_more_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: dict[str, int] = {}

    def child(command: Sequence[str], file: Path, place: object, *, limit_s: float) -> dict[str, Any]:
        tries[file.stem] = tries.get(file.stem, 0) + 1
        ends = {"a": (), "b": ("crashed",), "c": ("hung", "crashed")}[file.stem]
        if tries[file.stem] > len(ends):
            return {"problem": file.stem, "status": "improved", "verdict": "sound" if file.stem == "a" else None}
        return {"problem": file.stem, "status": "failed", "verdict": {"reason": ends[tries[file.stem] - 1]}}

    monkeypatch.setattr(module, "_child", child)
    campaign = Campaign(
        files=tuple(tmp_path / f"{n}.py" for n in "abc"), out=tmp_path / "out", target="cpu", budget_s=9.0,
        settings=(), jobs=2, devices=("0",), stamp="0.1.0 abc",
    )  # fmt: skip
    found = run_campaign(campaign, seen=lambda task: None)
    assert [t["status"] for t in found] == ["improved", "improved", "failed"]
    assert tries == {"a": 1, "b": 2, "c": 2}
    tries.clear()
    alone = replace(campaign, jobs=1, out=tmp_path / "alone")
    assert [t["status"] for t in run_campaign(alone, seen=lambda task: None)] == ["improved", "failed", "failed"]


def test_what_waits_for_a_reply_is_pending_and_goes_on_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the children as processes that leave with 75 until a reply lies there."""
    script = tmp_path / "child.py"
    script.write_text(
        "import json, pathlib, sys\n"
        "verb, place = sys.argv[1:3]\n"
        "out = pathlib.Path(sys.argv[4] if verb == 'optimize' else place)\n"
        "(out / 'run.db').touch()\n"
        "(out / 'verbs').open('a').write(' '.join([verb, *(a for a in sys.argv if a == '--no-wait')]) + '|')\n"
        "if not (out / 'reply').exists():\n"
        "    print('tilewright: pending: no reply yet in box', file=sys.stderr)\n"
        "    sys.exit(75)\n"
        "print(json.dumps({'problem': out.name, 'status': 'improved', 'verdict': {'accepted': True}}))\n"
    )
    run = module._child
    monkeypatch.setattr(module, "_child", lambda c, *a, **k: run([c[0], str(script), *c[3:]], *a, **k))
    campaign = Campaign(
        files=(tmp_path / "a.py", tmp_path / "b.py"), out=tmp_path / "out", target="cpu", budget_s=9.0, jobs=1,
        settings=("--strategy", "cutegen", "--model", "mailbox:box"), devices=(), stamp="0.1.0 abc",
        budget="9s,4calls", wait=False,
    )  # fmt: skip
    first = run_campaign(campaign, seen=lambda task: None)
    assert [t["status"] for t in first] == ["pending", "pending"]
    assert first[0]["verdict"]["summary"] == "no reply yet in box"
    (campaign.out / "a" / "reply").touch()
    later = replace(campaign, stamp="0.1.0 def")  # the code moved on meanwhile; what was paid for counts
    assert [t["status"] for t in run_campaign(later, seen=lambda task: None)] == ["improved", "pending"]
    (campaign.out / "b" / "reply").touch()
    assert [t["status"] for t in run_campaign(later, seen=lambda task: None)] == ["improved", "improved"]
    run_campaign(later, seen=lambda task: None)
    verbs = [(campaign.out / n / "verbs").read_text() for n in "ab"]
    assert verbs == ["optimize --no-wait|resume --no-wait|", "optimize --no-wait|" + "resume --no-wait|" * 2]
    with pytest.raises(UserError, match="replies that took their price; choose another --out"):
        run_campaign(replace(later, budget="9s,5calls"), seen=lambda task: None)


def test_a_model_that_could_not_be_reached_is_asked_again_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def child(command: Sequence[str], file: Path, place: object, *, limit_s: float) -> dict[str, Any]:
        calls.append(command)
        return {"problem": file.stem, "status": "failed", "verdict": {"reason": "crashed"}}

    monkeypatch.setattr(module, "_child", child)
    campaign = Campaign(
        files=(tmp_path / "a.py",), out=tmp_path / "out", target="cpu", budget_s=9.0, jobs=1,
        settings=("--model", "openai:x"), devices=(), stamp="s",
    )  # fmt: skip
    for asks in (campaign, replace(campaign, settings=(), out=tmp_path / "other")):
        calls.clear()
        for _ in range(2):
            run_campaign(asks, seen=lambda task: None)
        assert len(calls) == (2 if asks.asks else 1)


def test_a_task_that_another_machine_judges_may_take_its_time_and_is_asked_again_where_it_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []

    def child(command: Sequence[str], file: Path, place: object, *, limit_s: float | None) -> dict[str, Any]:
        limits.append(limit_s)
        return {"problem": file.stem, "status": "failed", "verdict": {"reason": "crashed"}}

    monkeypatch.setattr(module, "_child", child)
    here = Campaign(
        files=(tmp_path / "a.py",), out=tmp_path / "out", target="cpu", budget_s=9.0, settings=(), jobs=1, devices=(),
        stamp="0.1.0 abc",
    )  # fmt: skip
    there = replace(here, settings=("--evaluator", "bundle:box"))
    for campaign in (here, here, there, there, replace(there, wait=False)):
        run_campaign(campaign, seen=lambda task: None)
    assert limits == [258.0, None, None, 258.0]  # what broke here is kept


@pytest.mark.parametrize(
    ("script", "whose", "code"),
    [
        ("import sys; print('tilewright: 1_a.py: no `Model`', file=sys.stderr); sys.exit(2)", "problem", 2),
        ("import sys; print('tilewright: the disk is full (x)', file=sys.stderr); sys.exit(2)", "machine", 2),
        ("import sys; print('tilewright: out: permission denied', file=sys.stderr); sys.exit(2)", "machine", 2),
        ("import os; os.kill(os.getpid(), 9)", "machine", 2),
        ("import sys; print('tilewright: internal: x', file=sys.stderr); sys.exit(3)", "project", 3),
        ("import os; os.kill(os.getpid(), 11)", "project", 3),
        ("import time; time.sleep(60)", "project", 3),
        ('print(\'{"problem": "1_a", "status": "failed"}\')', "candidate", 1),
        ('print(\'{"problem": "1_a", "status": "improved"}\')', "candidate", 0),
    ],
)
def test_a_task_that_fails_says_whose_fault_it_was_and_the_worst_decides(
    tmp_path: Path, script: str, whose: str, code: int
) -> None:
    child = getattr(module, "_child")  # noqa: B009 - as it is called by a campaign
    task = child([sys.executable, "-c", script], tmp_path / "1_a.py", {}, limit_s=5.0)
    assert (task.get("whose", "candidate"), ended_badly([{"status": "improved"}, task])) == (whose, code)
    assert ended_badly([{"status": "failed"}, {"status": "pending"}, task]) == max(code, 1)
