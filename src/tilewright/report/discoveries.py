"""Discoveries, shown: the objects of `discover --json`, tables for the terminal, and the graph as an SVG drawing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..facts.discovery import Discovery, Part
from ..ir.graph import Call, Node
from . import drawing, words
from .graphs import drawn_before
from .objects import Task
from .page import environment
from .ruled import ruled

_MOST_LINES = 60  # of the table of operators
_MOST_BOXES = 400
_MOST_LEFT = 12
_WORTH_TELLING = 0.02
_LETTER = 6.9  # width, at the drawing's size of 12.5


def discovery_object(found: Discovery) -> dict[str, Any]:
    """What `discover --json` prints; times in ns, shares of `whole_ns`."""
    replay = found.replay
    return {
        "problem": found.problem, "target": found.target, "device": found.device,
        "module_ns": replay.module_ns, "calls_ns": replay.calls_ns, "whole_ns": replay.whole_ns,
        "floor_ns": found.floor_ns, "rounds": replay.rounds, "covered": found.covered, "gain": found.gain,
        "parts": [{**asdict(p), "distance": p.distance, "gain": p.gain} for p in found.parts],
        "calls": [_call_object(found, call) for call in _measured(found)],
    }  # fmt: skip


def _call_object(found: Discovery, call: Call) -> dict[str, Any]:
    nodes = {n.name: n for n in found.graph.nodes}
    times = {c.call: c for c in found.replay.calls}
    mine = [p for p in found.parts if call.name in p.calls]
    return {
        "call": call.name, "operator": call.target,
        "reads": _tensors(call.sources, nodes), "gives": _tensors(call.results, nodes),
        "ns": times[call.name].ns, "floor_ns": dict(found.floors_ns)[call.name],
        "bytes_moved": times[call.name].work.bytes_moved, "flops": times[call.name].work.flops,
        "patterns": [p.pattern for p in mine if p.pattern], "why": next((p.why for p in mine if p.why), ""),
    }  # fmt: skip


def _tensors(names: Sequence[str], nodes: Mapping[str, Node]) -> list[dict[str, Any]]:
    return [{"dtype": nodes[n].dtype, "shape": list(nodes[n].shape)} for n in names if n in nodes]


def _measured(found: Discovery) -> Iterator[Call]:
    """The graph's calls, in order, that were run by themselves."""
    timed = {c.call for c in found.replay.calls}
    return (call for call in found.graph.calls if call.name in timed)


def parts_table(found: Discovery) -> Table:
    """What each part of the module takes, and could win, the most first."""
    numbers = ("time", "share", "floor", "of floor", "can win")
    drawn = ruled("pattern", "what, and by what or why not", *numbers, numbers=numbers, whole=("pattern", *numbers),
                  title=f"{escape(found.problem)} on {escape(found.device)}")  # fmt: skip
    for part in found.parts:
        drawn.add_row(
            part.pattern or "–", f"{escape(_what(part))}\n[dim]{escape(part.rule or part.why)}[/]",
            words.duration(part.ns), words.percent(part.share), words.duration(part.floor_ns),
            words.percent(1 - part.distance), words.percent(part.gain),
        )  # fmt: skip
    drawn.caption = f"[not italic not dim]{escape(_caption(found))}[/]"
    return drawn


def _what(part: Part) -> str:
    more = f" ({len(part.calls)})" if not part.pattern and len(part.calls) > 1 else ""
    return part.title + more


def _caption(found: Discovery) -> str:
    replay = found.replay
    lines = [
        f"{words.percent(found.covered)} of the time falls in patterns, which could win {words.percent(found.gain)}",
        f"the module takes {words.duration(replay.module_ns)}, its operators by themselves "
        f"{words.duration(replay.calls_ns)} (eager, the fastest of {replay.rounds}); the module's floor is "
        f"{words.duration(found.floor_ns)}",
    ]
    between = 1 - replay.calls_ns / replay.whole_ns if replay.whole_ns else 0.0
    if between >= _WORTH_TELLING:
        lines.append(f"{words.percent(between)} of the time lies between operators: Python, dispatch, launches, memory")
    return "\n".join(lines)


def calls_table(found: Discovery) -> Table:
    """The graph, operator by operator, in the order in which they are run."""
    drawn = ruled("operator", "gives", "time", "share", "floor", "pattern", numbers=("time", "share", "floor"))
    nodes = {n.name: n for n in found.graph.nodes}
    times, floors = {c.call: c.ns for c in found.replay.calls}, dict(found.floors_ns)
    calls = list(_measured(found))
    for call in calls[:_MOST_LINES]:
        mine = [p for p in found.parts if call.name in p.calls]
        drawn.add_row(
            escape(call.name), escape(_gives(call, nodes)), words.duration(times[call.name]),
            words.percent(times[call.name] / found.replay.whole_ns), words.duration(floors[call.name]),
            " ".join(p.pattern for p in mine if p.pattern),
        )  # fmt: skip
    if len(calls) > _MOST_LINES:
        drawn.caption = f"[not italic]... and {len(calls) - _MOST_LINES} more; --json has all of them[/]"
    return drawn


def _gives(call: Call, nodes: Mapping[str, Node]) -> str:
    return ", ".join(words.tensor(nodes[r].dtype, nodes[r].shape) for r in call.results if r in nodes)


def discovery_svg(found: Discovery) -> str:
    """The graph with its times, in the colours of the patterns; a document of its own."""
    numbers = {p.id: i for i, p in enumerate(found.patterns)}
    nodes = {n.name: n for n in found.graph.nodes}
    whole = found.replay.whole_ns
    times = {c.call: f"{words.duration(c.ns)}, {words.percent(c.ns / whole)}" for c in found.replay.calls}
    notes = {c.name: " · ".join(filter(None, (_gives(c, nodes), times[c.name]))) for c in _measured(found)}
    drawn = drawn_before(found.graph, found.patterns, numbers=numbers, notes=notes, most=_MOST_BOXES)
    legend = [
        (numbers[p.pattern], f"{p.pattern}: {p.title} ({words.percent(p.share)} of the time, can win "
                             f"{words.percent(p.gain)})")
        for p in found.parts if p.pattern
    ]  # fmt: skip
    title = f"{found.problem} on {found.device}, {words.duration(found.replay.module_ns)}"
    template = environment().get_template("graph.svg.jinja")
    width = max(drawn.width, 42 + _LETTER * max(len(text) for text in (title, *(t for _, t in legend))))
    return template.render(d=drawn, boxes=drawing, legend=legend, title=title, width=round(width, 1))


# ---- many modules


def discoveries_summary(tasks: Sequence[Task]) -> dict[str, Any]:
    """Over many modules: means of the shares that fall in patterns and of what these could win; what is left to torch,
    as a share of all modules' time where each counts alike, the most first."""
    seen = [t for t in tasks if "parts" in t]
    return {
        "tasks": len(tasks), "failed": len(tasks) - len(seen),
        "mean_covered": fmean(t["covered"] for t in seen) if seen else None,
        "median_covered": median(t["covered"] for t in seen) if seen else None,
        "mean_gain": fmean(t["gain"] for t in seen) if seen else None,
        "left": [
            {"what": what, "why": why, "share": share / len(seen), "tasks": count}
            for (what, why), (share, count) in sorted(_left(seen).items(), key=lambda item: -item[1][0])
        ],
        "failures": [{"problem": t.get("problem"), **(t.get("verdict") or {})} for t in tasks if "parts" not in t],
    }  # fmt: skip


def _left(seen: Sequence[Task]) -> dict[tuple[str, str], tuple[float, int]]:
    """By what it is and why: the sum of its shares, and in how many modules it is."""
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    for task in seen:
        for part in task["parts"]:
            if not part["pattern"]:
                share, count = sums.get((part["title"], part["why"]), (0.0, 0))
                sums[part["title"], part["why"]] = share + part["share"], count + 1
    return sums


def left_table(tasks: Sequence[Task]) -> Table:
    """What takes most of the modules' time and is left to torch."""
    drawn = ruled("left to torch", "why", "of the time", "modules", numbers=("of the time", "modules"))
    for item in discoveries_summary(tasks)["left"][:_MOST_LEFT]:
        drawn.add_row(escape(item["what"]), escape(item["why"]), words.percent(item["share"]), str(item["tasks"]))
    return drawn


def discoveries_table(tasks: Sequence[Task]) -> Table:
    """One line a module; then the means."""
    numbers = ("time", "floor", "in patterns", "can win")
    drawn = ruled("task", *numbers, "most of it in", numbers=numbers)
    for task in tasks:
        if "parts" in task:
            drawn.add_row(
                escape(task["problem"]), words.duration(task["module_ns"]), words.duration(task["floor_ns"]),
                words.percent(task["covered"]), words.percent(task["gain"]), escape(_largest(task)),
            )  # fmt: skip
        else:
            why = str((task.get("verdict") or {}).get("summary"))
            drawn.add_row(escape(str(task.get("problem"))), "", "", "[red]failed[/]", "", escape(why))
    total = discoveries_summary(tasks)
    names = (("in patterns, mean", "mean_covered"), ("median", "median_covered"), ("can win, mean", "mean_gain"))
    means = ", ".join(f"{name} {words.percent(total[key])}" for name, key in names if total[key] is not None)
    drawn.caption = f"[not italic not dim]{total['tasks']} tasks, {total['failed']} failed; {means}[/]"
    return drawn


def _largest(task: Task) -> str:
    part = max(task["parts"], key=lambda p: p["share"], default=None)
    return f"{part['title']} ({words.percent(part['share'])}; {part['rule'] or part['why']})" if part else ""
