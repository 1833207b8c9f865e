"""Timing: a checked candidate against its baselines, in turn, until the ratio is known well enough or time is up.

What the candidate returned in randomly chosen timed calls is compared with the truth, on parameters re-drawn
half-way; the ticks of its cell are held against the judge's own wall clock; a time that the hardware can't reach is
refused.
"""

from __future__ import annotations

import statistics as plain
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...facts.machine import Machine
from ...facts.outcome import Checked, Failure, Interval, Samples, Timed
from ...facts.problem import Work
from . import statistics
from .interleave import Player, Table

AA = "eager_again"
_CLOCK_SLACK = 0.25  # of a call, may pass outside the timed region
_CLOCK_DELAY_S = 0.003  # of a burst: a busy machine's scheduler
_CLOCK_SLACK_S = {"cpu": 10e-6, "cuda": 60e-6}  # a call: the loop around the timed region, launches on a GPU included
_EMPTY_TRIES, _CLOCK_TRIES = 10, 20
_CLOCK_BURST_S = 0.02  # the judge's own clock must see at least this much, or the most calls
_MAX_LENGTH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """When to stop: `tight` relative half-width of every ratio's interval, or `budget_s`; between the given rounds."""

    tight: float = 0.01
    budget_s: float = 6.0
    min_rounds: int = 8
    max_rounds: int = 60
    verified: int = 2  # rounds with a verified timed call


class Implausible(Exception):
    """The timing of the candidate can't be believed. `reason`: "implausible" or "clock_disagrees"."""

    def __init__(self, reason: str, summary: str) -> None:
        super().__init__(summary)
        self.failure = Failure(stage="timing", reason=reason, summary=summary)


def measure(table: Table, ours: Player, *, effort: Effort, verify: Callable[[int, Sequence[int]], None]) -> None:
    """Fill the table's bursts. `verify(round, slots)` is called before chosen rounds with nothing, and runs one kept
    burst of the candidate itself; it raises where the result is wrong."""
    table.warm_up()
    deadline = time.monotonic() + effort.budget_s
    chosen = set(table.rng.sample(range(1, effort.min_rounds), effort.verified)) if effort.verified else set()
    for number in range(effort.max_rounds):
        table.round()
        if number in chosen:
            paused = time.monotonic()
            verify(number, table.contents)
            deadline += time.monotonic() - paused
        if number + 1 >= effort.min_rounds and (time.monotonic() > deadline or _tight(table, ours, effort.tight)):
            return


def _tight(table: Table, ours: Player, tight: float) -> bool:
    mine = table.bursts[ours.name]
    others = [b for name, b in table.bursts.items() if name not in (ours.name, AA)]
    return all(statistics.half_width(statistics.ratio_interval(b, mine)) < tight for b in others)


def check_clock(table: Table, ours: Player) -> None:
    """The candidate's ticks against the judge's wall clock: what the wall clock saw of a burst, less what an empty one
    takes and less the ticks, must be small beside the calls. Delays only add to it, so the least of several tries
    counts, and no noise can help a clock that lies."""
    slack_s = _CLOCK_SLACK_S[table.room.device]
    empty_s = min(table.burst(ours, calls=0, cold=False)[2] for _ in range(_EMPTY_TRIES))
    length = 4
    while length < _MAX_LENGTH and _shortest_s(table, ours, length) - empty_s < _CLOCK_BURST_S:
        length *= 2
    unseen_s = said_s = float("inf")
    for _ in range(_CLOCK_TRIES):
        samples, _, wall_s = table.burst(ours, calls=length, cold=False)
        ticks_s = sum(samples) / 1e9
        unseen_s = min(unseen_s, (wall_s - empty_s - ticks_s) / length)
        said_s = min(said_s, plain.median(samples) / 1e9)
        excess_s = wall_s - empty_s - (1 + _CLOCK_SLACK) * ticks_s - length * slack_s
        if excess_s <= _CLOCK_DELAY_S:
            return
    raise Implausible(
        "clock_disagrees",
        f"by its own clock a call takes {said_s * 1e6:.1f} us, and the judge's clock sees {unseen_s * 1e6:.1f} us "
        "more: work is done outside the timed region",
    )


def _shortest_s(table: Table, ours: Player, calls: int) -> float:
    return min(table.burst(ours, calls=calls, cold=False)[2] for _ in range(3))


def check_floor(machine: Machine, work: Work, time_ns: Interval) -> None:
    impossible_ns = machine.impossible_ns(work)
    if time_ns.mid < impossible_ns:
        raise Implausible(
            "implausible",
            f"{time_ns.mid / 1e3:.1f} us a call; {(work.bytes_read + work.bytes_written) / 1e6:.0f} MB and "
            f"{(work.matmul_flops + work.conv_flops) / 1e9:.1f} GFLOP can't take less than "
            f"{impossible_ns / 1e3:.1f} us here",
        )


def summarise(checked: Checked, table: Table, *, ours: str, machine: Machine, work: Work) -> Timed:
    bursts = table.all_bursts()
    ratios = [(n, statistics.ratio_interval(b, bursts[ours])) for n, b in bursts.items() if n not in (ours, AA)]
    if AA in bursts:
        ratios.append(("aa", statistics.ratio_interval(bursts["eager"], bursts[AA])))
    return Timed(
        checked=checked,
        times_ns=tuple((n, statistics.time_interval(b)) for n, b in bursts.items()),
        ratios=tuple(ratios),
        samples=tuple(Samples(name=n, bursts_ns=b) for n, b in bursts.items()),
        floor_ns=machine.floor_ns(work),
        bytes_moved=work.bytes_read + work.bytes_written,
        flops=work.matmul_flops + work.conv_flops,
    )
