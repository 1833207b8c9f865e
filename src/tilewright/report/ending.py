"""How a run ended: the status, the verdict, and what is handed over, read from the context and the events alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..facts.candidate import Candidate
from ..facts.move import Capture, Event, Sanitize, Stop, Try, Tune
from ..facts.outcome import Captured, Failure, PointTime, Sanitized, Timed, Tuned
from ..facts.pattern import Pattern, Recipe
from ..facts.run import SearchContext
from ..facts.space import Point

Status = Literal["improved", "no_improvement", "failed", "unfinished"]
# A point won a sweep of this run, an earlier one on this toolchain or on another one, or none.
Chosen = Literal["measured", "remembered", "hinted", "untuned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownVerdict:
    """What the judge said of the result; refused, `excerpt` holds what the candidate printed or raised."""

    accepted: bool  # the judge accepted a candidate, be it faster or not
    stage: str  # where it was decided: "timing", "check", "build", ...; "search" where no candidate came to the judge
    reason: str  # a slug: "faster", "not_faster", "nothing_found", "unfinished", or a Failure's reason
    summary: str
    excerpt: str = ""

    @property
    def line(self) -> str:
        """The verdict for a reader: a refusal begins with where and why."""
        if self.accepted or self.stage == "search":
            return self.summary
        return f"refused in {self.stage}, {self.reason.replace('_', ' ')}: {self.summary}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """`timed` is the judged result that is handed over, None where the module is kept as it is; `seen` is that or else
    the last accepted candidate of the run, which tells the baselines' times even then. `theirs`: the mode in which
    torch.compile was seen to be faster than either, beyond noise; "" where it was not."""

    status: Status
    verdict: ShownVerdict
    best: Candidate | Recipe | None
    timed: Timed | None
    seen: Timed | None
    sanitized: Sanitized | None = None  # of what is handed over; None where it was not asked for
    captured: Captured | None = None  # the same as a CUDA graph; None where that was not looked at
    theirs: str = ""

    @property
    def recipe(self) -> Recipe:
        return () if self.best is None or isinstance(self.best, Candidate) else self.best


def ending(context: SearchContext, events: Sequence[Event]) -> Ending:
    """Distil a run. `improved` needs an accepted final candidate that is faster than eager beyond noise."""
    found = _distilled(context, events)
    mode = _theirs(found)
    if not mode or found.status in ("unfinished", "failed") or found.seen is None:
        return found
    told = f"{found.verdict.summary}; {found.seen.compile_title} is faster: {_beside_eager(found.seen)}"
    return replace(found, theirs=mode, verdict=replace(found.verdict, summary=told))


def _theirs(end: Ending) -> str:
    """The mode of torch.compile that is faster than what is handed over, or than eager where nothing is."""
    if end.seen is None:
        return ""
    theirs, eager = end.seen.time("compile"), end.seen.time("eager")
    if end.timed is not None:
        ratio = end.timed.ratio("compile")
        ahead = ratio is not None and ratio.high < 1
    else:
        ahead = theirs is not None and eager is not None and theirs.high < eager.low
    return end.seen.compile_mode if ahead else ""


def _beside_eager(seen: Timed) -> str:
    theirs, eager = seen.time("compile"), seen.time("eager")
    return f"{eager.mid / theirs.mid:.2f}x as fast as eager" if theirs and eager else "beyond noise"


def _distilled(context: SearchContext, events: Sequence[Event]) -> Ending:
    tries = [e.outcome for e in events if isinstance(e.move, Try)]
    seen = next((outcome for outcome in reversed(tries) if isinstance(outcome, Timed)), None)
    stop = next((e.move for e in reversed(events) if isinstance(e.move, Stop)), None)
    best = stop.best if stop else None
    outcome = next((e.outcome for e in reversed(events) if isinstance(e.move, Try) and e.move.what == best), None)
    if isinstance(outcome, Timed) and best:
        status, verdict = _judged(outcome)
        sanitized = next((e.outcome for e in reversed(events) if isinstance(e.outcome, Sanitized)), None)
        captured = next((e.outcome for e in reversed(events) if isinstance(e.outcome, Captured)), None)
        return Ending(
            status=status, verdict=verdict, best=best, timed=outcome, seen=outcome, sanitized=sanitized,
            captured=captured,
        )  # fmt: skip
    if stop is None:
        by_agent = "the agent has not finished it; it continues by opening the folder again, through `tilewright mcp`"
        said = by_agent if context.from_outside else "the run has not ended; `tilewright resume DIR` continues it"
        verdict = ShownVerdict(accepted=False, stage="search", reason="unfinished", summary=said + _so_far(tries))
        return Ending(status="unfinished", verdict=verdict, best=None, timed=None, seen=seen)
    status, verdict = _kept(stop, events)
    return Ending(status=status, verdict=verdict, best=None, timed=None, seen=seen)


def _so_far(tries: Sequence[object]) -> str:
    """What a run that goes on has come to; "" where nothing is faster than eager yet."""
    faster = [(ratio.mid, _judged(t)) for t in tries if isinstance(t, Timed) and (ratio := t.ratio("eager"))]
    best = max(faster, key=lambda pair: pair[0], default=None)
    return f"; so far {best[1][1].summary}" if best and best[1][0] == "improved" else ""


def _judged(timed: Timed) -> tuple[Status, ShownVerdict]:
    eager, compiled = timed.ratio("eager"), timed.ratio("compile")
    said = " and ".join(
        f"{ratio.mid:.2f}x as fast as {name} [{ratio.low:.2f}, {ratio.high:.2f}]"
        for name, ratio in (("eager", eager), (timed.compile_title, compiled))
        if ratio is not None
    )
    faster = timed.faster_than("eager")
    if timed.undecided:
        said = f"{said}, while noise hides whether it works on what it kept of earlier calls"
    verdict = ShownVerdict(
        accepted=True, stage="timing", reason="faster" if faster else "not_faster",
        summary=said if faster else f"{said or 'no baseline was timed'}: not faster than eager beyond noise",
    )  # fmt: skip
    return ("improved" if faster else "no_improvement"), verdict


def _kept(stop: Stop, events: Sequence[Event]) -> tuple[Status, ShownVerdict]:
    """The module is kept as it is: since nothing was found or won, or since nothing could be judged."""
    unsound = next((e.outcome for e in reversed(events) if isinstance(e.move, Sanitize | Capture)), None)
    if isinstance(unsound, Failure):
        return "failed", _refused(unsound)
    attempts = [e for e in events if isinstance(e.move, Try | Tune)]
    if any(isinstance(e.outcome, Timed) for e in attempts):
        return "no_improvement", ShownVerdict(accepted=True, stage="timing", reason="not_faster", summary=stop.why)
    tries = [e for e in attempts if isinstance(e.move, Try)]
    # that its points ran, while they were tuned, is nothing to what the judge then refused
    if not attempts or (not tries and any(_ran(e) for e in attempts)):
        reason = "not_faster" if attempts else "nothing_found"
        return "no_improvement", ShownVerdict(accepted=False, stage="search", reason=reason, summary=stop.why)
    failure = next((e.outcome for e in reversed(tries or attempts) if isinstance(e.outcome, Failure)), None)
    if failure is None:
        failure = Failure(stage="tune", reason="no_point_ran", summary=stop.why, excerpt=_tune_failures(attempts))
    return "failed", _refused(failure)


def _refused(failure: Failure) -> ShownVerdict:
    return ShownVerdict(
        accepted=False, stage=failure.stage, reason=failure.reason, summary=failure.summary, excerpt=failure.excerpt
    )


def _ran(event: Event) -> bool:
    return isinstance(event.outcome, Tuned) and any(p.time_ns is not None for p in event.outcome.points)


def _tune_failures(attempts: Sequence[Event]) -> str:
    points = [p for e in attempts if isinstance(e.outcome, Tuned) for p in e.outcome.points]
    return "\n".join(dict.fromkeys(p.failure for p in points if p.failure))


def fused(context: SearchContext, recipe: Recipe) -> tuple[tuple[Pattern, Point], ...]:
    """The patterns of a recipe with the points at which they are realised, in the order in which they were found."""
    points = {choice.pattern: choice.point for choice in recipe}
    patterns = {p.id: p for m in reversed(context.matched) for p in reversed(m.patterns)}
    return tuple((p, points[p.id]) for p in reversed(patterns.values()) if p.id in points)


def tuning_of(
    context: SearchContext, events: Sequence[Event], pattern: Pattern
) -> tuple[Chosen, tuple[PointTime, ...]]:
    """On what the point of a pattern rests, and the points that were measured for it in this run."""
    for event in reversed(events):
        if isinstance(event.move, Tune) and event.move.pattern == pattern.id and isinstance(event.outcome, Tuned):
            return "measured", event.outcome.points
    if any(choice.pattern == pattern.id for choice in context.remembered):
        return "remembered", ()
    return ("hinted" if any(choice.pattern == pattern.id for choice in context.hinted) else "untuned"), ()


def floor_share(timed: Timed | None) -> float | None:
    """The floor as a share of our time: 1.0 is the hardware's limit (more: the data stayed in the cache)."""
    ours = timed.time("ours") if timed else None
    return timed.floor_ns / ours.mid if timed and ours and ours.mid > 0 else None
