"""Folders of runs for the site: journals as runs leave them, hostile ones among them, and what `bench` keeps beside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fakes.runs import IMPROVED, NOTHING, REFUSED, context, timed
from tilewright.edges.ledger import Ledger
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.dialogue import Message, Prompt, Reply, Usage
from tilewright.facts.move import Ask, Event, Inspect, Move, Outcome, Stop, Try
from tilewright.facts.outcome import Failure, Inspected, NamedTime
from tilewright.facts.profile import Diagnosis
from tilewright.facts.run import SearchContext
from tilewright.report import summary

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>\0</pre></code>‮ "\' &amp; javascript:alert(1)'
LONG = "x" * 5000


def written_run(folder: Path, on: SearchContext, events: Sequence[Event]) -> Path:
    with Ledger(folder / "run.db") as ledger:
        ledger.write(on)
        for event in events:
            ledger.append(event.move, event.outcome, wall_s=event.wall_s, held=event.held)
    return folder


def kept_beside(folder: Path, on: SearchContext, events: Sequence[Event], **changes: object) -> Path:
    """The result of a run as `bench` keeps it."""
    path = folder.with_name(f"{folder.name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**summary(on, events, candidate_dir=""), **changes}))
    return path


def dialogue(words: str = "make it faster", reply: str = "FILE: model.py") -> tuple[Event, ...]:
    """A run that asks twice: what is refused first is then right and kept."""
    first, second = candidate(f"# first\n{words}\n"), candidate(f"# second\n{words}\n")
    prompt = Prompt(system=f"You write kernels. {words}", messages=(Message(role="user", text=f"Begin: {words}"),))
    longer = replace(
        prompt, messages=(*prompt.messages, Message(role="model", text=reply), Message(role="user", text="Wrong."))
    )  # fmt: skip
    said = Reply(text=reply, finish="stop", model="test-model", usage=Usage(input_tokens=900, output_tokens=100))
    refusal = Failure(stage="check", reason="wrong_values", summary=f"off by 3 {words}", excerpt=f"Traceback {words}")
    slow = NamedTime(name=f"slow_loop {words}", origin="own", times=2, ns=80.0)
    seen = Inspected(
        longest=(slow,), kinds=1, ns=100.0, diagnosis=Diagnosis(limit="limited by memory", changes=("fuse",))
    )
    pairs: list[tuple[Move, Outcome]] = [
        (Ask(prompt=prompt, model="scripted:x", turn=0, why="step 1"), said),
        (Try(what=first, why=f"fewer bytes {words}"), refusal),
        (Ask(prompt=longer, model="scripted:x", turn=1, why="step 1, repaired"), said),
        (Try(what=second, why="repaired"), timed(1.8)),
        (Inspect(what=second), seen),
        (Stop(best=second, why="budget"), None),
    ]  # fmt: skip
    return tuple(Event(seq=i, move=m, outcome=o, wall_s=1.5) for i, (m, o) in enumerate(pairs))


def candidate(text: str) -> Candidate:
    own = SourceFile(path="model.py", text=text)
    return Candidate(files=(own, SourceFile(path="tilewright_kernels/ops.py", text="SECRET_OF_THE_LIBRARY = 1\n")))


def campaign(root: Path) -> Path:
    """A folder as `bench` and `compare` leave it: good, refused, hostile, damaged and half-written runs."""
    asked = {"strategy": "cutegen", "model": "scripted:x"}
    written_run(root / "catalog" / "9_gate", context("9_gate", run="run-a"), IMPROVED)
    kept_beside(root / "catalog" / "9_gate", context("9_gate", run="run-a"), IMPROVED)
    written_run(root / "catalog" / "10_norm", context("10_norm", run="run-b"), REFUSED)
    written_run(root / "catalog" / "11_sort", context("11_sort", run="run-c"), NOTHING)
    written_run(root / "cutegen" / "9_gate", context("9_gate", run="run-d", **asked), dialogue())
    hostile = context(f"12 {HOSTILE}", run="../../run <e>", **asked)
    written_run(root / "cutegen" / "12_hostile", hostile, dialogue(f"{HOSTILE} {LONG}", f"{HOSTILE}\n{LONG}"))
    damaged = written_run(root / "catalog" / "13_damaged", context("13_damaged", run="run-f"), IMPROVED) / "run.db"
    damaged.write_bytes(damaged.read_bytes()[:5000] + b"\xff" * 9000)
    (root / "catalog" / "14_begun").mkdir()
    (root / "catalog" / "14_begun" / ".stamp").write_text("{}")
    written_run(root / "catalog" / "15_crashed", context("15_crashed", run="run-g"), IMPROVED[:1])
    crashed = {"accepted": False, "stage": "run", "reason": "crashed", "summary": "exit -9: killed"}
    kept_beside(
        root / "catalog" / "15_crashed", context("15_crashed", run="run-g"), IMPROVED[:1], status="failed",
        verdict=crashed, whose="machine",
    )  # fmt: skip
    (root / "half.json").write_text('{"tasks": [{"problem": "16_ha')
    return root
