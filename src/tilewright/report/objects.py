"""What programs read: the JSON object of one run, and the summary over many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..facts.move import Event
from ..facts.outcome import Captured, Interval, Timed
from ..facts.pattern import Pattern, inductor_mode, without_inductor
from ..facts.run import SearchContext
from .algebra import algebra
from .attribution import attribution
from .ending import Ending, ending, floor_share, fused, tuning_of
from .parts import part_rows

Task = Mapping[str, Any]  # an object as `summary` gives it, possibly read back from a file


def summary(context: SearchContext, events: Sequence[Event], *, candidate_dir: str) -> dict[str, object]:
    """The object of `optimize --json`. What was not measured is null; a ratio is baseline time / our time."""
    end, held = ending(context, events), device_seconds(context, events)
    less, context = algebra(context, events, end), context.behind(end.recipe)
    return {
        "run": context.run,
        "problem": context.problem.name,
        "target": context.problem.target,
        "mode": context.problem.mode,
        "strategy": context.strategy,
        "status": end.status,
        "verdict": {name: getattr(end.verdict, name) for name in end.verdict.__dataclass_fields__},
        "error": _error(end.timed),
        "times_ns": _times(end),
        "ratio": {
            name: _interval(end.timed.ratio(name) if end.timed else None)
            for name in ("eager", "compile", "eager_warm", "compile_warm")
        },
        "compile_mode": end.seen.compile_mode if end.seen and end.seen.ratio("compile") else None,
        "theirs": end.theirs or None,
        "compile_remembered": (end.seen.compile_remembered or None) if end.seen else None,
        "compile_modes_ns": {
            n.partition(":")[2]: _interval(t)
            for n, t in (end.seen.times_ns if end.seen else ())
            if n.startswith("compile:") and not n.endswith("_warm")
        },
        "phases": _phases(end.seen),
        "peak_bytes": dict(end.seen.peak_bytes) if end.seen else {},
        "tried": _tried(end),
        "noise": _interval(end.seen.ratio("aa") if end.seen else None),
        **{
            name: _interval(getattr(end.seen, name) if end.seen else None)
            for name in ("unseen_ns", "row_excess_ns", "new_excess_ns")
        },
        "stations": _stations(end.seen),
        "floor_ns": end.seen.floor_ns if end.seen else None,
        "floor_share": floor_share(end.timed),
        "patterns": [
            {"id": p.id, "title": p.title, "kind": p.kind, "point": dict(point), "nodes": list(p.nodes)}
            | _tuning(context, events, p)
            for p, point in fused(context, end.recipe)
        ],
        "others": [
            {"id": p.id, "title": p.title, "kind": p.kind, "settings": p.settings}
            for p in part_rows(context, end.recipe)
            if not p.traffic
        ],
        "refusals": list(context.refusals),
        "attribution": [
            {
                "pattern": w.pattern, "title": w.title, "by": w.by, "alone": _interval(w.alone),
                "without": _interval(w.without), "instead": list(w.instead),
            }
            for w in attribution(context, events, end)
        ],
        "algebra": less
        and {
            "steps": list(less.steps), "kept": less.kept, "with": _interval(less.with_it),
            "without": _interval(less.without), "refused": less.refused,
        },
        "candidate": candidate_dir or None,
        "candidate_id": end.timed.checked.built.candidate_id if end.timed else None,
        "fallbacks": fallbacks(context, end),
        "own_share": end.timed.checked.own_share if end.timed else None,
        "time_shares": dict(end.timed.checked.time_shares) if end.timed else {},
        "launches": _launches(end.timed),
        "cuda_graph": _captured(end.captured),
        "sanitizer": (
            {"clean": list(end.sanitized.clean), "notes": list(end.sanitized.notes)} if end.sanitized else None
        ),
        "notes": list(end.timed.checked.notes) if end.timed else [],
        "unmatched": [{"case": m.case, "nodes": list(m.unmatched)} for m in context.matched if m.unmatched],
        "machine": _machine(context),
        "seconds": sum(e.wall_s for e in events),
        "device_seconds": {"all": sum(held.values()), "stations": held},
    }  # fmt: skip


def device_seconds(context: SearchContext, events: Sequence[Event]) -> dict[str, float]:
    """For what the run held the device, and how long."""
    found: dict[str, float] = {}
    for station in (*context.held, *(s for e in events for s in e.held)):
        found[station.name] = found.get(station.name, 0.0) + station.seconds
    return found


def _launches(timed: Timed | None) -> dict[str, object] | None:
    if timed is None or timed.launches is None:
        return None
    return {"count": timed.launches.count, "cost_ns": timed.launches.cost_ns, "bound": timed.launch_bound}


def _tuning(context: SearchContext, events: Sequence[Event], pattern: Pattern) -> dict[str, object]:
    """On what the pattern's point rests: which points were measured, at what share of the floor."""
    chosen, measured = tuning_of(context, events, pattern)
    floor_ns = context.machine.floor_ns(context.cases[0].work)
    tried = [
        {
            "point": dict(m.point), "time_ns": _interval(m.time_ns), "failure": m.failure,
            "floor_share": floor_ns / m.time_ns.mid if m.time_ns else None,
        }
        for m in measured
    ]  # fmt: skip
    return {"chosen": chosen, "points_tried": tried}


def _phases(seen: Timed | None) -> dict[str, object]:
    """The halves of a training step: times of each implementation, and baseline time / our time."""
    return {
        phase.name: {
            "times_ns": {name: _interval(time) for name, time in phase.times_ns},
            "ratio": {name: _interval(ratio) for name, ratio in phase.ratios},
        }
        for phase in (seen.phases if seen else ())
    }


def _tried(end: Ending) -> dict[str, object] | None:
    """What the judge accepted last, where it was not faster and the module is kept as it is."""
    if end.timed is not None or end.seen is None:
        return None
    ratios = {name: _interval(end.seen.ratio(name)) for name in ("eager", "compile")}
    return {"time_ns": _interval(end.seen.time("ours")), "ratio": ratios}


def fallbacks(context: SearchContext, end: Ending) -> list[dict[str, object]]:
    """Where the result leaves its fast path: the cases that it hands to the original module, with the reason, and the
    calls of the judged run that it counted itself, by reason."""
    if end.timed is None:
        return []
    counted: list[dict[str, object]] = [{"reason": reason, "calls": n} for reason, n in end.timed.checked.fallbacks]
    chosen = {c.pattern for c in end.recipe}
    compiled, called = inductor_mode(end.recipe), any(c.written is not None for c in end.recipe)
    for index, case in enumerate(context.cases if without_inductor(end.recipe) else ()):
        patterns = [p for m in context.matched if m.case == index for p in m.patterns]
        if (compiled and case.graph is not None) or (called and index == 0):
            continue
        if not any(p.id in chosen for p in patterns):
            reason = case.trace_failure or ("no pattern is realised in it" if patterns else "no pattern matched")
            counted.append({"case": index, "reason": reason})
    return counted


_FAST = (0.0, 1.0, 1.5, 2.0)


def bench_summary(tasks: Sequence[Task]) -> dict[str, object]:
    """Over all tasks: geometric means of the ratios and the rest of the `summary` of a bench file.

    `passed` counts tasks of which the judge accepted a candidate, `unchanged` those, of them and of the rest, that keep
    the module as it is; these and the `failed` ones, which `failures` lists, count as 1.0 against eager.
    "Best" is the better of eager and torch.compile. A task is
    won where it is improved: faster than eager beyond noise. `device_seconds`: how long a task's run held the device.
    `fast_p`: for each p the share of tasks of which a candidate was accepted that is more than p times as fast as eager
    (KernelBench, arXiv 2502.10517); from 1 on beyond noise. Each of the `failures` says whose fault it was: the
    machine's, the project's (ours), the problem's or the candidate's.
    `pending` ones, which wait for a model, count nowhere. Without algebra: with what was best without it in the tasks
    whose result has it; null where none has."""
    everything, tasks = tasks, [t for t in tasks if t.get("status") != "pending"]
    eager = [ratio_of(t, "eager") for t in tasks]
    best = [ratio_of(t, "best") for t in tasks]
    passed = [t for t in tasks if (t.get("verdict") or {}).get("accepted")]
    failures = [t for t in tasks if t.get("status") == "failed"]
    shares = [float(t["floor_share"]) for t in passed if t.get("floor_share")]
    held = [float(t["device_seconds"]["all"]) for t in tasks if t.get("device_seconds")]
    return {
        "tasks": len(everything),
        "pending": len(everything) - len(tasks),
        "passed": len(passed),
        "unchanged": sum(1 for t in tasks if t.get("status") != "failed" and _mid(t, "eager") is None),
        "failed": len(failures),
        "geomean_eager": geomean(eager),
        "geomean_eager_without_algebra": geomean(map(_without_algebra, tasks)) if any(map(_algebra, tasks)) else None,
        "geomean_best": geomean(best),
        "median_eager": statistics.median(eager) if eager else None,
        "fast_p": {f"{p:g}": sum(_faster(t, p) for t in tasks) / len(tasks) for p in _FAST} if tasks else None,
        "share_won": sum(won(t) for t in tasks) / len(tasks) if tasks else None,
        "geomean_floor_share": geomean(shares),
        "device_seconds": {"median": statistics.median(held), "most": max(held)} if held else None,
        "failures": [
            {"problem": t.get("problem"), "whose": whose(t), "reason": (t.get("verdict") or {}).get("reason"),
             "summary": (t.get("verdict") or {}).get("summary")}
            for t in failures
        ],
    }  # fmt: skip


def whose(task: Task) -> str:
    """Whose fault it is that a task failed: "machine", "project" (ours), "problem" or "candidate"."""
    return str(task.get("whose", "candidate"))


def _faster(task: Task, p: float) -> bool:
    """Whether a candidate was accepted that is more than `p` times as fast as eager."""
    accepted = bool((task.get("verdict") or {}).get("accepted")) and task.get("status") != "failed"
    return accepted and ratio_of(task, "eager") > p and (p < 1 or won(task))


def ratio_of(task: Task, against: str) -> float:
    """How many times as fast the result is as eager, torch.compile or the better of both ("best"). Where the module is
    kept as it is, the result is eager: 1.0, and less against torch.compile where that was seen to be faster."""
    if against == "best":
        return min(ratio_of(task, "eager"), ratio_of(task, "compile"))
    found = _mid(task, against)
    if found is None and against == "compile" and task.get("status") != "failed":
        times = task.get("times_ns") or {}
        eager, compiled = times.get("eager"), times.get("compile")
        return min(1.0, compiled["mid"] / eager["mid"]) if eager and compiled else 1.0
    return found or 1.0


def _algebra(task: Task) -> Mapping[str, Any] | None:
    """What is told of algebra in a task whose result has it."""
    told = task.get("algebra")
    return told if told and told["kept"] and task.get("status") == "improved" else None


def _without_algebra(task: Task) -> float:
    told = _algebra(task)
    if told is None:
        return ratio_of(task, "eager")
    without = told["without"]
    return max(1.0, float(without["mid"])) if without else 1.0


def won(task: Task) -> bool:
    return task.get("status") == "improved"


def geomean(values: Iterable[float]) -> float | None:
    logs = [math.log(v) for v in values if v > 0]
    return math.exp(statistics.fmean(logs)) if logs else None


def _mid(task: Task, against: str) -> float | None:
    ratio = (task.get("ratio") or {}).get(against)
    return float(ratio["mid"]) if ratio and task.get("status") != "failed" else None


def _captured(found: Captured | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "ours_ns": _interval(found.ours_ns), "eager_ns": _interval(found.eager_ns), "ratio": _interval(found.ratio),
        "why": found.why,
    }  # fmt: skip


def _interval(value: Interval | None) -> dict[str, float] | None:
    return None if value is None else {"low": value.low, "mid": value.mid, "high": value.high}


def _times(end: Ending) -> dict[str, dict[str, float] | None]:
    baselines = {name: _interval(end.seen.time(name) if end.seen else None) for name in ("eager", "compile")}
    times = {"ours": _interval(end.timed.time("ours") if end.timed else None), **baselines}
    warm = {f"{name}_warm": end.seen.time(f"{name}_warm") if end.seen else None for name in times}
    if end.timed is None:
        warm["ours_warm"] = None
    return times | {name: _interval(time) for name, time in warm.items()}


def _stations(seen: Timed | None) -> list[dict[str, object]]:
    stations = seen.stations if seen else ()
    return [{"name": s.name, "seconds": s.seconds, "parts": dict(s.parts)} for s in stations]


def _error(timed: Timed | None) -> dict[str, object] | None:
    worst = timed.checked.worst_error if timed else None
    if worst is None:
        return None
    names = ("norm", "worst", "allowed_norm", "allowed_worst", "case", "family", "output")
    return {name: getattr(worst, name) for name in names}


def _machine(context: SearchContext) -> dict[str, object]:
    machine = context.machine
    names = (
        "target", "device", "driver", "torch", "dsl", "processors", "cache_bytes", "copy_bytes_per_s", "under_load",
        "key",
    )  # fmt: skip
    return {n: getattr(machine, n) for n in names} | {"matmul_flops_per_s": dict(machine.matmul_flops_per_s)}
