"""Whole turns: what a candidate's processes do beside its timed calls, held against what eager's do.

A call's own time is known by its clock. What comes before it, when the last result is let go, state put back and caches
evicted, is the same work in every cell: what takes the candidate longer there, by the judge's clock, was done by its
finalizers, by its threads, or for it. Where that is more than noise it belongs to the call, and its time is added; who
works for longer than eager's whole call, beside its own, is refused. Processor time of all its processes is bounded,
too: threads and children may work while the judge sees nothing of it.
"""

from __future__ import annotations

import statistics as plain
from dataclasses import dataclass

from ...facts.outcome import Interval
from . import statistics
from .interleave import BurstSchedule, TimedSubject
from .measure import Implausible, clock_slack_s, said_s

_TRIALS, _ROUNDS = 2, 12  # each with rounds of its own, until a candidate is refused, or its time added
_WAITING_S = 0.025  # for which a thread of OpenMP's may burn a processor after each call
_MOST_CPU = 2.0  # of eager's call, may be used outside of a call's tick: so may one that computes in children


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a call took beside its tick, beyond eager's, in ns: wall time, and processor time, less what threads that
    wait may use."""

    wall_ns: Interval
    cpu_ns: Interval


def check_turns(schedule: BurstSchedule, ours: TimedSubject, eager: TimedSubject, *, threads: int) -> float:
    """How much time, in ns, is to be added to each of the candidate's calls: 0 where it spends no more beside them than
    eager does. Raises Implausible("works_between"). `threads`: how many OpenMP has in a cell."""
    found = _beside(schedule, ours, eager, threads)
    for _ in range(_TRIALS):
        if not _suspect(schedule, ours, found):
            return 0.0
        again = schedule.anew((ours, eager), schedule.calls)
        for _ in range(_ROUNDS):
            again.round()
        found = _least(found, _beside(again, ours, eager, threads))
    if not _suspect(schedule, ours, found):
        return 0.0
    slack_ns = clock_slack_s(schedule, ours.name) * 1e9
    eager_ns, eager_cpu_ns = said_s(schedule, eager.name) * 1e9, plain.median(schedule.used[eager.name]) * 1e9
    worked = [
        (found.wall_ns, eager_ns, "takes", "by the judge's clock"),
        (found.cpu_ns, _MOST_CPU * eager_cpu_ns, "uses", "of processors' time"),
    ]
    for seen, bound_ns, verb, where in worked:
        if seen.low > bound_ns + slack_ns:
            raise Implausible(
                "works_between",
                f"between its timed calls it {verb} {seen.mid / 1e3:.0f} us {where} beyond what eager's process does "
                f"there, for each call, where {bound_ns / 1e3:.0f} us may be: it works outside the timed region",
            )
    return max(0.0, found.wall_ns.mid) if found.wall_ns.low > slack_ns else 0.0


def _suspect(schedule: BurstSchedule, ours: TimedSubject, found: Beside) -> bool:
    return max(found.wall_ns.low, found.cpu_ns.low) > clock_slack_s(schedule, ours.name) * 1e9


def _least(one: Beside, other: Beside) -> Beside:
    """Of each kind the smaller: what noise adds is not seen twice."""
    pairs = (one.wall_ns, other.wall_ns), (one.cpu_ns, other.cpu_ns)
    wall_ns, cpu_ns = (min(pair, key=lambda i: i.low) for pair in pairs)
    return Beside(wall_ns=wall_ns, cpu_ns=cpu_ns)


def _beside(schedule: BurstSchedule, ours: TimedSubject, eager: TimedSubject, threads: int) -> Beside:
    walls = zip(schedule.between[ours.name], schedule.between[eager.name], strict=True)
    wall_ns = [(plain.median(mine) - plain.median(theirs)) * 1e9 for mine, theirs in walls]
    waiting_s = max(0, threads - 1) * _WAITING_S
    cpus = zip(schedule.cpu[ours.name], schedule.cpu[eager.name], strict=True)
    cpu_ns = [(mine - theirs - waiting_s) * 1e9 for mine, theirs in cpus]
    return Beside(wall_ns=statistics.median_interval(wall_ns), cpu_ns=statistics.median_interval(cpu_ns))
