"""What a prompt tells of a candidate that was judged: its times, where the time goes, or why it was refused."""

from __future__ import annotations

from ...facts.move import Outcome
from ...facts.outcome import Failure, Inspected, Interval, Timed


def microseconds(ns: float) -> str:
    return f"{ns / 1e3:.4g} us"


def measured(timed: Timed) -> list[str]:
    """The times that every step is told."""
    names = ("ours", "eager", "compile")
    found = [f"{name} {_span(time)}" for name in names if (time := timed.time(name))]
    ours, ratio = timed.time("ours"), timed.ratio("eager")
    gain = [f"{ratio.mid:.3g}x as fast as eager [{ratio.low:.3g}, {ratio.high:.3g}]"] if ratio else []
    share = [f"the floor is {timed.floor_ns / ours.mid:.0%} of ours"] if ours else []
    return [*found, *gain, f"floor {microseconds(timed.floor_ns)}", *share, *_allowance(timed)]


def _span(time: Interval) -> str:
    """With its 99% interval."""
    return f"{microseconds(time.mid)} [{time.low / 1e3:.4g}, {time.high / 1e3:.4g}]"


def _allowance(timed: Timed) -> list[str]:
    """How much error is allowed, and how much of that is used: what is left may be spent on speed."""
    worst = timed.checked.worst_error
    if worst is None or not worst.allowed_norm:
        return []
    return [
        f"error: {worst.share:.0%} of what is allowed is used (output {worst.output} on {worst.family} inputs: norm "
        f"{worst.norm:.2g} of {worst.allowed_norm:.2g}, worst element {worst.worst:.2g} of {worst.allowed_worst:.2g})"
    ]


def slower_than_eager(timed: Timed) -> str:
    """By how much, where it is beyond noise; "" where it is not."""
    ratio = timed.ratio("eager")
    if ratio is None or ratio.high >= 1:
        return ""
    return f"slower than eager, {ratio.mid:.3g}x [{ratio.low:.3g}, {ratio.high:.3g}]"


def evidence(timed: Timed) -> list[str]:
    """What the judge's measurements tell of where the time goes."""
    lines = []
    ours, warm = timed.time("ours"), timed.time("ours_warm")
    if ours is not None:
        lines.append(
            f"the least traffic, {timed.bytes_moved / 1e6:.4g} MB, moves at {timed.bytes_moved / ours.mid:.4g} GB/s"
        )
        if timed.flops:
            lines.append(f"matrix products run at {timed.flops / ours.mid / 1e3:.4g} Tflop/s")
    if ours is not None and warm is not None:
        lines.append(f"with warm caches it takes {microseconds(warm.mid)}, {warm.mid / ours.mid:.0%} of the cold time")
    if timed.checked.time_shares:
        shares = sorted(timed.checked.time_shares, key=lambda s: -s[1])
        lines.append("shares of a call's time: " + ", ".join(f"{name} {share:.0%}" for name, share in shares))
    lines += [f"calls off its fast path: {count} ({reason})" for reason, count in timed.checked.fallbacks]
    return lines


def profile(outcome: Outcome) -> list[str]:
    """What was seen of a candidate under a profiler, or why nothing was."""
    if isinstance(outcome, Failure):
        return [f"it could not be profiled: {outcome.reason}: {outcome.summary}"]
    assert isinstance(outcome, Inspected)
    return profile_lines(outcome)


def profile_lines(inspected: Inspected, *, most: int = 8) -> list[str]:
    """Where a call's time went, the longest first; what limits it, and what is likely to pay."""
    whole = inspected.ns or 1.0
    lines = [
        f"{n.name[:80]} ({n.origin}): {n.ns / whole:.0%} of the time in {n.times} call{'s' * (n.times != 1)}"
        for n in inspected.longest[:most]
    ]
    started = inspected.launches
    lines += [f"{started.count} launches, {started.ns / 1e3:.4g} us on the host"] if started else []
    return [*lines, *(inspected.diagnosis.lines() if inspected.diagnosis else ())]


def refusal(failure: Failure) -> dict[str, str]:
    """What `mend.jinja` is filled with."""
    return {
        "stage": failure.stage, "reason": failure.reason, "summary": failure.summary, "excerpt": failure.excerpt,
    }  # fmt: skip
