"""Between a run and the memory of winners: what a context may know of earlier runs, and what a tuning adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..facts.device import Device
from ..facts.devices import device_of
from ..facts.machine import Machine
from ..facts.move import Event, Tune
from ..facts.outcome import Tuned
from ..facts.pattern import Choice, Pattern, Recipe
from ..facts.run import Matched, SearchContext, patterns_by_id
from ..facts.space import Point
from ..facts.version import VERSION
from ..facts.winner import Winner, toolchain
from ..realise.digests import skeleton_digests
from ..realise.table import realisers
from ..search.tune import memory

_MOST_NOISE = 0.2  # of a winner's time, to either side: what is known less well is measured again


def known_winners(
    matched: Sequence[Matched], machine: Machine, *, winners: Path, shipped: Path = memory.SHIPPED
) -> tuple[Recipe, Recipe]:
    """By pattern, the points that won on this machine with this toolchain and these skeletons, and those that won with
    others, on another GPU of the architecture, or while the machine was too disturbed to say; what a pattern's knobs do
    not allow any more is left out."""
    versions = {"tilewright": VERSION, **dict(skeleton_digests(machine.target))}
    device = device_of(machine)
    remembered: list[Choice] = []
    hinted: list[Choice] = []
    for pattern in patterns_by_id(matched).values():
        now = toolchain(machine, tilewright=made_by(pattern, versions, device))
        found = memory.recall(winners, machine, now, pattern.shape_class, shipped=shipped)
        if found is not None and pattern.space.holds(found.point):
            own = found.device == machine.device and found.toolchain == now
            known = remembered if own and _is_sure(found) else hinted
            known.append(Choice(pattern=pattern.id, point=found.point))
    return tuple(remembered), tuple(hinted)


def near_winners(
    matched: Sequence[Matched], machine: Machine, *, but: Recipe, winners: Path, shipped: Path = memory.SHIPPED
) -> Recipe:
    """By pattern, but for those that are known, the points that won on this machine with this toolchain and these
    skeletons where there were more or fewer rows."""
    versions = {"tilewright": VERSION, **dict(skeleton_digests(machine.target))}
    device, known, near = device_of(machine), {choice.pattern for choice in but}, list[Choice]()
    for pattern in patterns_by_id(matched).values():
        if pattern.id in known or not pattern.batch_class:
            continue
        now = toolchain(machine, tilewright=made_by(pattern, versions, device))
        found = memory.recall(winners, machine, now, pattern.batch_class, shipped=shipped)
        own = found is not None and found.device == machine.device and found.toolchain == now
        if found is not None and own and pattern.space.holds(found.point):
            near.append(Choice(pattern=pattern.id, point=found.point))
    return tuple(near)


def narrowed(matched: Sequence[Matched], near: Recipe) -> tuple[Matched, ...]:
    """The same patterns, each of which a near batch's winner is known with that and the likeliest of its other points:
    no more of them are compiled and measured."""
    points = {choice.pattern: choice.point for choice in near}

    def few(pattern: Pattern) -> Pattern:
        won = points.get(pattern.id)
        if won is None:
            return pattern
        others = tuple(p for p in pattern.space.points if p != won)[:1]
        return replace(pattern, space=replace(pattern.space, points=(won, *others)))

    return tuple(replace(m, patterns=tuple(map(few, m.patterns))) for m in matched)


def kept_as(winner: Winner, pattern: Pattern) -> tuple[Winner, ...]:
    """The entries by which later runs find a winner: for such rows as these, and, as a hint, for any number."""
    key = pattern.batch_class
    return (winner, replace(winner, shape_class=key)) if key else (winner,)


def made_by(pattern: Pattern, versions: Mapping[str, str], device: Device) -> str:
    """Our part of the toolchain of a pattern's winner: the version, and the digest of what makes its kernels."""
    names = ("tilewright", realisers(device).digest(pattern.program))
    return " ".join(versions[name] for name in names if name in versions)


def _is_sure(winner: Winner) -> bool:
    time_ns = winner.time_ns
    return time_ns.high - time_ns.low <= 2 * _MOST_NOISE * time_ns.mid


def winner_of(context: SearchContext, event: Event, point: Point, *, found_at: str) -> Winner | None:
    """What a Tune says of the point that won, as something to remember; None where it holds no time of it, or
    tunes a library's call or torch.compile, which have no pattern's class."""
    if not (isinstance(event.move, Tune) and isinstance(event.outcome, Tuned)):
        return None
    pattern = patterns_by_id((*context.matched, *context.rewritten)).get(event.move.pattern)
    if pattern is None:
        return None
    times = {p.point: p.time_ns for p in event.outcome.points}
    time_ns = times.get(point)
    if time_ns is None:
        return None
    return Winner(
        target=context.machine.target, device=context.machine.device, shape_class=pattern.shape_class,
        title=pattern.title, point=point, tried=event.outcome.points,
        toolchain=toolchain(
            context.machine, tilewright=made_by(pattern, dict(context.versions), device_of(context.machine))
        ),
        floor_share=context.machine.floor_ns(context.cases[0].work) / time_ns.mid, found_at=found_at,
    )  # fmt: skip
