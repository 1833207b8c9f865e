"""What a coding agent is told of its run: each attempt as the judge saw it, a profile, what is left of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..facts.move import Event, Stop, Try, Tune
from ..facts.outcome import Failure, Inspected, Timed, Tuned
from ..facts.profile import Diagnosis
from ..facts.run import SearchContext
from .objects import summary

# Of the object of `evaluate --json`; what is null or empty in it is left out.
_TOLD = (
    "verdict", "ratio", "times_ns", "floor_ns", "floor_share", "error", "noise", "own_share", "time_shares", "launches",
    "phases", "peak_bytes", "fallbacks", "sanitizer", "notes",
)  # fmt: skip
_LONGEST_NAME = 200
_MOST_KERNELS = 8


def attempt_object(context: SearchContext, event: Event, *, number: int) -> dict[str, Any]:
    """The judge's verdict on one candidate: fields as in `evaluate --json`."""
    assert isinstance(event.move, Try)
    accepted = isinstance(event.outcome, Timed)
    stop = Stop(best=event.move.what if accepted else None, why="judged")
    events = (event, Event(seq=event.seq + 1, move=stop, outcome=None, wall_s=0.0))
    told = {"attempt": number, "idea": event.move.why, "state": "accepted" if accepted else "refused"}
    return told | verdict_object(context, events)


def verdict_object(context: SearchContext, events: Sequence[Event]) -> dict[str, Any]:
    """The verdict on the one candidate that these events judge: fields as in `evaluate --json`."""
    whole = summary(context, events, candidate_dir="")
    told = {name: _filled(whole[name]) for name in _TOLD}
    return {name: value for name, value in told.items() if value not in (None, {}, [])}


def attempt_row(event: Event, *, number: int) -> dict[str, Any]:
    """An attempt in short: how fast, or why not."""
    assert isinstance(event.move, Try)
    row: dict[str, Any] = {"attempt": number, "idea": event.move.why, "seconds": round(event.wall_s, 1)}
    if isinstance(event.outcome, Timed):
        ratio, ours = event.outcome.ratio("eager"), event.outcome.time("ours")
        return row | {
            "state": "accepted", "faster": event.outcome.faster_than("eager"),
            "ratio_eager": ratio.mid if ratio else None, "time_ns": ours.mid if ours else None,
        }  # fmt: skip
    assert isinstance(event.outcome, Failure)
    failure = event.outcome
    return row | {"state": "refused", "stage": failure.stage, "reason": failure.reason, "summary": failure.summary}


def sweep_object(event: Event) -> dict[str, Any]:
    """The points of a kernel's settings that were measured in turn."""
    assert isinstance(event.move, Tune)
    points = event.outcome.points if isinstance(event.outcome, Tuned) else ()
    rows = [{"point": dict(p.point), "ns": p.time_ns.mid if p.time_ns else None, "failure": p.failure} for p in points]
    why = event.outcome.summary if isinstance(event.outcome, Failure) else None
    return {"pattern": event.move.pattern, "points": _filled(rows)} | ({"failure": why} if why else {})


def ended_object(told: dict[str, Any]) -> dict[str, Any]:
    """The end of a run in short, of the object of `optimize --json`."""
    names = ("status", "verdict", "ratio", "floor_share", "candidate_id")
    return {name: _filled(told[name]) for name in names if told[name] is not None}


def profile_object(found: Inspected) -> dict[str, Any]:
    """Where a call's time went. Names come from the process that was profiled."""
    longest = [
        {"name": n.name[:_LONGEST_NAME], "origin": n.origin, "times": n.times, "ns": n.ns,
         "share": n.ns / found.ns if found.ns else 0.0}
        for n in found.longest
    ]  # fmt: skip
    launches = {"count": found.launches.count, "cost_ns": found.launches.cost_ns} if found.launches else None
    told = {"ns": found.ns, "kinds": found.kinds, "longest": longest, "launches": launches}
    return told | (_diagnosis_object(found.diagnosis) if found.diagnosis else {})


def _diagnosis_object(found: Diagnosis) -> dict[str, Any]:
    """What limits the call, kernel by kernel, and what is likeliest to pay; numbers carry their units in words."""
    kernels = [
        {
            "name": k.name[:_LONGEST_NAME], "origin": k.origin, "source": k.source, "times": k.times, "ns": k.ns,
            "limit": k.limit, "evidence": {m.name: m.text for m in k.evidence},
            "stalls": {m.name: m.text for m in k.stalls}, "hot": [asdict(spot) for spot in k.hot],
        }
        for k in found.kernels[:_MOST_KERNELS]
    ]  # fmt: skip
    return {"limit": found.limit, "kernels": kernels, "changes": list(found.changes), "notes": list(found.notes)}


def _filled(value: object) -> object:
    """Without what is null, at every depth."""
    if isinstance(value, dict):
        return {name: _filled(v) for name, v in value.items() if v is not None and v != ""}
    return [_filled(v) for v in value] if isinstance(value, list) else value
