"""What is known of a pattern's points before any is measured: on CUDA they are compiled on the CPU cores, off the
device; then they are put in order, and what spills, can't run or is another point's kernel is left out."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..edges.gpu.machine import threads
from ..facts.demand import Demand
from ..facts.device import Device
from ..facts.pattern import Choice, Pattern
from ..facts.run import Matched, patterns_by_id
from ..facts.space import Point
from ..facts.time_budget import UNBOUNDED, TimeBudget
from ..realise.table import realisers
from ..search.tune.predict import cpu_ns, cuda_ns, likeliest
from .ahead import Objects, answers_of, paths_in
from .children import LIMIT_S

_SHARE = 0.3  # of a run's time, until which points may be compiled
_LEAST_S = 10.0  # that a compiler needs to start and to come to something
Say = Callable[[str], None]
Job = tuple[str, Point]  # a pattern's id and one of its points


def foreseen(
    matched: Sequence[Matched], device: Device, *, known: Collection[str], say: Say, folder: Path, objects: Objects,
    tuned: bool = True, time: TimeBudget = UNBOUNDED,
) -> tuple[Matched, ...]:  # fmt: skip
    """The same patterns with the points that are worth measuring, the likeliest first; those in `known`, whose winner
    is remembered, as they are. What is compiled for the device is kept in `folder`, and `objects` learns
    of it. Not `tuned`, nobody will measure them: where a realiser has its points in order by a model of its own, the
    first alone is compiled, if it can run. What is not compiled when a share of `time` has passed is not measured."""
    patterns = {k: p for k, p in patterns_by_id(matched).items() if k not in known and len(p.space.points) > 1}
    make, limit_s = realisers(device), time.limit_s(LIMIT_S, share=_SHARE)
    if device.target == "cuda" and patterns and time.left_s(_SHARE) < _LEAST_S:
        say("the budget leaves no time to compile all points: they stay in their order")
        return tuple(matched)
    ranked = {p.id for p in patterns.values() if make.is_ranked(p.program)}
    late = limit_s < LIMIT_S  # what is not known then was not come to
    if device.target == "cpu":
        chosen = {p.id: _for_cpu(p, device) for p in patterns.values() if p.id not in ranked}
    else:
        compiled = partial(demanded, device=device, folder=folder, objects=objects, limit_s=limit_s)
        demands = compiled([p if tuned or p.id not in ranked else _at_first(p) for p in patterns.values()])
        if not tuned:
            patterns = {k: p for k, p in patterns.items() if not (k in ranked and _is_able(p, demands, device))}
            demands |= compiled(list(patterns.values()))
        chosen = {k: _for_cuda(p, demands, device, say, ranked=k in ranked, late=late) for k, p in patterns.items()}
    spaces = {id: pattern.space for id, pattern in chosen.items()}
    return tuple(
        replace(m, patterns=tuple(replace(p, space=spaces.get(p.id, p.space)) for p in m.patterns)) for m in matched
    )


def _at_first(pattern: Pattern) -> Pattern:
    return replace(pattern, space=replace(pattern.space, points=pattern.space.points[:1]))


def _is_able(pattern: Pattern, demands: Mapping[Job, Demand | str], device: Device) -> bool:
    """Whether the first of its points can run."""
    return not _useless(demands.get((pattern.id, pattern.space.points[0]), "not known"), set(), device)


def _for_cpu(pattern: Pattern, device: Device) -> Pattern:
    times = {p: cpu_ns(pattern.program, p, device) for p in pattern.space.points}
    return replace(pattern, space=likeliest(pattern.space, times))


def _for_cuda(
    pattern: Pattern, demands: Mapping[Job, Demand | str], device: Device, say: Say, *, ranked: bool, late: bool = False
) -> Pattern:
    found = {p: demands.get((pattern.id, p), "not known") for p in pattern.space.points}
    known = [demand for demand in found.values() if demand != "not known"]
    if len(known) < len(found) and not (late and known):
        say(f"{pattern.id}: what its kernels take is not known here; its points stay in their order")
        return pattern
    plans: set[str] = set()
    times: dict[Point, float] = {}
    left_out: Counter[str] = Counter()
    for point, demand in found.items():
        why = _useless(demand, plans, device)
        left_out.update([why] if why else [])
        able_ns = 1.0 if isinstance(demand, str) or ranked else cuda_ns(demand, device)
        times[point] = math.inf if why else able_ns
    space = likeliest(pattern.space, times)
    left_out["less likely"] = sum(math.isfinite(t) for t in times.values()) - len(space.points)
    told = ", ".join(f"{count} {why}" for why, count in left_out.items() if count > 0)
    say(f"{pattern.id}: {len(space.points)} of {len(found)} points to measure{f' ({told})' if told else ''}")
    return replace(pattern, space=space)


def _useless(demand: Demand | str, plans: set[str], device: Device) -> str:
    """Why a point is not measured, or ""; `plans` grows by its plan."""
    if isinstance(demand, str):
        return "not compiled"
    seen = demand.plan in plans
    plans.add(demand.plan)
    if seen:
        return "the same kernel as another"
    if demand.local_bytes:
        return "spilling registers"
    return "" if demand.resident_ctas(device) else "too large for a multiprocessor"


def demanded(
    patterns: Sequence[Pattern], *, device: Device, folder: Path, objects: Objects, limit_s: float = LIMIT_S
) -> dict[Job, Demand | str]:
    """What each point of the patterns takes of the device, or why it does not compile; a point of which nothing could
    be learnt is left out. What `objects` has not is compiled in as many processes as there are cores, into `folder`; no
    GPU is needed."""
    make = realisers(device)
    files = [file for p in patterns for file in make.render(p.program, p.id, p.space.points[0])]
    choices = _in_turn(patterns)
    texts = {file.path: file.text for file in files}
    found = {(c.pattern, c.point): demand for c in choices if (demand := objects.demand(texts, c)) is not None}
    missing = [c for c in choices if (c.pattern, c.point) not in found]
    if not missing:
        return found
    texts |= {file.path: file.text for file in make.skeleton_files([p.program for p in patterns])}
    lines = answers_of(
        "tilewright.kernels.cuda.common.demand", texts, missing, folder=folder, jobs=threads(), device=device,
        limit_s=limit_s,
    )  # fmt: skip
    for choice, line in zip(missing, lines, strict=True):
        if paths := paths_in(line):
            objects.put(texts, choice, paths)
    new = answered([(c.pattern, c.point) for c in missing], lines)
    for choice in missing:
        if (demand := new.get((choice.pattern, choice.point))) is not None:
            objects.note(texts, choice, demand)
    return found | new


def _in_turn(patterns: Sequence[Pattern]) -> list[Choice]:
    """Every point of the patterns: the first of each, then the second of each, so that an early end leaves none without
    any."""
    ranks = range(max((len(p.space.points) for p in patterns), default=0))
    return [
        Choice(pattern=p.id, point=p.space.points[rank]) for rank in ranks for p in patterns
        if rank < len(p.space.points)
    ]  # fmt: skip


def answered(jobs: Sequence[Job], lines: Sequence[str]) -> dict[Job, Demand | str]:
    """What the children said of each job; nothing of one that no child came to, or that one died in the middle of."""
    found: dict[Job, Demand | str] = {}
    for job, line in zip(jobs, lines, strict=True):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            answer = json.loads(line)
            found[job] = str(answer["failure"]) if "failure" in answer else Demand(**answer["demand"])
    return found
