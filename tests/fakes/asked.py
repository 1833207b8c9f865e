"""Runs that ask a model: a script for its replies, and a judge that reads what a candidate claims of itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.edges.ledger import Ledger
from tilewright.edges.models.scripted import Scripted, scripted_reply
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.dialogue import Reply, ToolAnswer, Usage
from tilewright.facts.move import (
    Ask,
    CallTool,
    Compose,
    Event,
    Inspect,
    Interleave,
    Move,
    Outcome,
    Sanitize,
    Stop,
    Try,
    Verify,
)
from tilewright.facts.outcome import (
    Failure,
    Inspected,
    Interleaved,
    Interval,
    NamedTime,
    Samples,
    Sanitized,
    Timed,
    VariantTime,
)
from tilewright.facts.profile import Diagnosis
from tilewright.facts.run import EDITION, Limits, SearchContext
from tilewright.facts.verdict import Verdict, Verified
from tilewright.run.drive import drive
from tilewright.search.strategies import STRATEGIES

from .facts import context, timed

PLAIN = Candidate(files=(SourceFile(path="model.py", text="class ModelNew(Model): 'ns 1000, plain'\n"),))
START = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: 'ns 1000'\n"),))


def asking(*, limits: Limits = Limits(), start: Candidate | None = None, **changes: object) -> SearchContext:  # noqa: B008
    return replace(context(), model="scripted:x", limits=limits, start=start, **{"edition": EDITION, **changes})


def at(ns: float, *, floor_ns: float = 50.0) -> Timed:
    """Accepted, at this time; eager takes 1000 ns."""
    found = timed(1000.0 / ns, candidate_id=str(ns))
    spread = Interval(low=ns * 0.99, mid=ns, high=ns * 1.01)
    return replace(found, times_ns=(("ours", spread),), floor_ns=floor_ns)


def judge(move: Move) -> Outcome:
    """Of `'ns 500'` in the text that time, of `'bad REASON'` a refusal."""
    if isinstance(move, Compose):
        return PLAIN
    if isinstance(move, CallTool):
        return ToolAnswer(tool=move.tool, text="built, and run once\nk.cpp:3:5: missed: couldn't vectorize loop")
    if isinstance(move, Interleave):
        return in_turns([claimed_ns("".join(f.text for f in c.files)) for c in move.candidates])
    if isinstance(move, Sanitize):
        return Sanitized(clean=("memcheck",))
    if isinstance(move, Verify):
        proven = "proof" in "".join(f.text for f in move.what.files)
        signs = "suspect" if "smells" in "".join(f.text for f in move.what.files) else "clean"
        return Verified(verdicts=(Verdict(verifier="compile", says="proven" if proven else signs, why="line 7"),))  # type: ignore[arg-type]
    if isinstance(move, Inspect):
        own = NamedTime(name="slow_loop", origin="own", times=2, ns=80.0)
        said = re.search(r"ns \d+", move.what.files[0].text) if isinstance(move.what, Candidate) else None
        limit = f"slow_loop of {said[0] if said else 'nobody'} is limited by bank conflicts"
        return Inspected(
            longest=(own,), kinds=1, ns=100.0, diagnosis=Diagnosis(limit=limit, changes=("swizzle",))
        )  # fmt: skip
    assert isinstance(move, Try) and isinstance(move.what, Candidate)
    text = "".join(f.text for f in move.what.files)
    if bad := re.search(r"bad (\w+)", text):
        return Failure(stage="check", reason=bad[1], summary="row 3 of output 0 is wrong", excerpt="line 7: oh")
    return at(claimed_ns(text))


def claimed_ns(text: str) -> float:
    tile = re.search(r"TILE = (\d+)", text)
    ns = re.search(r"ns (\d+)", text)
    assert ns
    return float(ns[1]) * (0.5 if tile and tile[1] == "128" else 1.0)


def in_turns(ns: Sequence[float]) -> Interleaved:
    """Known to a thousandth, as beside one another they are."""
    return Interleaved(
        variants=tuple(
            VariantTime(
                time_ns=Interval(low=t * 0.999, mid=t, high=t * 1.001),
                ratio=Interval(low=0.999 * ns[0] / t, mid=ns[0] / t, high=1.001 * ns[0] / t),
            )
            for t in ns
        )
    )


def whole(said: str, idea: str = "an idea") -> str:
    return f"IDEA: {idea}\nPREDICTION: 2x, fewer bytes\nFILE: model.py\n```python\nclass ModelNew: '{said}'\n```\n"


def ran(
    path: Path,
    strategy: str,
    replies: Sequence[str | Reply],
    *,
    on: SearchContext,
    judge: Callable[[Move], Outcome] = judge,
) -> tuple[Stop, tuple[Event, ...]]:
    usage = Usage(input_tokens=900, output_tokens=100)
    script = Scripted([
        r if isinstance(r, Reply) else scripted_reply(r, usage=usage, price_usd=0.5) for r in replies
    ])  # fmt: skip

    def perform(move: Move) -> Outcome:
        return script.ask(move) if isinstance(move, Ask) else judge(move)

    with Ledger(path) as ledger:
        stop = drive(STRATEGIES[strategy](on), ledger=ledger, perform=perform, watch=lambda e: None)
        return stop, ledger.events()


def shape(events: Sequence[Event]) -> str:
    """`a` an Ask, `t` a Try that passed, `x` one that was refused, `i` an Inspect, `=` an Interleave,
    `c` a Compose, `u` a tool."""
    kinds = {
        Ask: "a",
        Try: "t",
        Sanitize: "s",
        Inspect: "i",
        Verify: "v",
        Interleave: "=",
        Compose: "c",
        CallTool: "u",
        Stop: ".",
    }
    return "".join("x" if isinstance(e.outcome, Failure) else kinds[type(e.move)] for e in events)


def prompts(events: Sequence[Event]) -> list[str]:
    return [e.move.prompt.messages[-1].text for e in events if isinstance(e.move, Ask)]


def text_of(stop: Stop) -> str:
    assert isinstance(stop.best, Candidate)
    return stop.best.files[0].text


def sampled(move: Move) -> Outcome:
    """The judge of the fakes, with samples that decide what may be claimed."""
    found = judge(move)
    if not (isinstance(move, Try) and isinstance(found, Timed)):
        return found
    ours = found.times_ns[0][1].mid
    bursts = tuple((ours * (1 + 0.01 * i), ours * (1 + 0.02 * i)) for i in range(200))
    eager = tuple((1000.0 * (1 + 0.01 * i),) for i in range(200))
    return replace(found, samples=(Samples(name="ours", bursts_ns=bursts), Samples(name="eager", bursts_ns=eager)))
