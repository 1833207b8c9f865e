"""A model inspects a module's graph and proposes further patterns: typed, validated against the graph, or told why."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...facts.dialogue import Message, Prompt
from ...facts.discovery import Part
from ...facts.move import Ask
from ...facts.pattern import Region, Subproblem
from ...facts.regions import region_of
from ...facts.run import SearchContext
from ...ir.graph import Graph
from .prompts import render

MOST = 4  # proposals that are taken
_LONGEST_TITLE = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A part of the graph that a model thinks worth a kernel, found to be one that can be made a problem; `gain`: the
    share of the module's time that it takes above what its inputs and outputs take to move."""

    subproblem: Subproblem
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReply:
    """What a reply holds: proposals that are valid, and why others are not."""

    proposals: tuple[Proposal, ...]
    problems: tuple[str, ...]


def inspection(context: SearchContext, graph: Graph) -> tuple[Message, ...]:
    """What the model is asked."""
    total_ns = sum(p.ns for p in context.parts) or 1.0
    shares = call_ns(context.parts)
    inside = {call: p.pattern for p in context.parts if p.pattern for call in p.calls}
    nodes = {n.name: n for n in graph.nodes}
    machine = context.machine
    text = render(
        "inspect", source=context.problem.source.strip(), device=machine.device, notes=context.notes,
        bandwidth=f"{machine.copy_bytes_per_s / 1e9:.4g} GB/s",
        calls=[
            {
                "name": c.name, "target": c.target, "takes": ", ".join(dict.fromkeys(c.sources)),
                "gives": ", ".join(f"{nodes[r].dtype}{list(nodes[r].shape)}" for r in c.results if r),
                "share": _percent(shares.get(c.name, 0.0) / total_ns), "pattern": inside.get(c.name, ""),
            }
            for c in graph.calls
        ],
        parts=[
            {"pattern": p.pattern, "title": p.title, "why": p.why, "share": _percent(p.ns / total_ns),
             "gain": _percent(p.ns / total_ns * p.distance)}
            for p in context.parts
        ],
    )  # fmt: skip
    return (Message(role="user", text=text),)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share else ""


def asked(context: SearchContext, messages: tuple[Message, ...], *, turn: int, least: float, why: str) -> Ask:
    system = render("inspect_system", target=context.problem.target, most=MOST, least=f"{100 * least:.0f}%")
    return Ask(prompt=Prompt(system=system, messages=messages), model=context.model, turn=turn, why=why)


def told_why(messages: tuple[Message, ...], reply: str, read: ReadReply) -> tuple[Message, ...]:
    """The dialogue with the reply, and with why some of it could not be taken."""
    taken = [p.subproblem.title for p in read.proposals]
    text = render("inspect_again", problems=read.problems, taken=taken)
    return (*messages, Message(role="model", text=reply or "(nothing)"), Message(role="user", text=text))


def read(
    text: str, context: SearchContext, graph: Graph, *, least: float, before: Sequence[Proposal] = ()
) -> ReadReply:
    """The proposals of a reply. `before`: those that were taken already; they count, too."""
    try:
        entries = _entries(text)
    except ValueError as error:
        return ReadReply(proposals=(), problems=(str(error),))
    found: list[Proposal] = []
    problems: list[str] = []
    for number, entry in enumerate(entries, start=1):
        try:
            if len(before) + len(found) >= MOST:
                raise ValueError(f"there are {MOST} already")
            name = f"piece_{len(before) + len(found)}"
            found.append(_proposal(entry, name, context, graph, least, (*before, *found)))
        except ValueError as error:
            title = entry.get("title") if isinstance(entry, dict) else None
            problems.append(f"number {number}{f' ({str(title)[:_LONGEST_TITLE]})' if title else ''}: {error}")
    return ReadReply(proposals=tuple(found), problems=tuple(problems))


def _entries(text: str) -> list[Any]:
    block = re.findall(r"```(?:json)?\s*\n(.*?)```", text, flags=re.DOTALL)
    try:
        found = json.loads(block[-1] if block else text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON object was found in it: {error}") from None
    entries = found.get("patterns") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise ValueError('the object has no list "patterns"')
    return entries


def _proposal(
    entry: Any, name: str, context: SearchContext, graph: Graph, least: float, before: Sequence[Proposal]
) -> Proposal:
    if not isinstance(entry, dict) or entry.keys() != {"title", "calls", "why"}:
        raise ValueError('it is no object of "title", "calls" and "why"')
    title, calls = entry["title"], entry["calls"]
    if not isinstance(title, str) or not title.strip() or len(title) > _LONGEST_TITLE or "\n" in title:
        raise ValueError(f"its title is no line of at most {_LONGEST_TITLE} characters")
    if not isinstance(calls, list) or not calls or not all(isinstance(c, str) for c in calls):
        raise ValueError("its calls are no list of names")
    by_name = {c.name: c for c in graph.calls}
    if unknown := [c for c in calls if c not in by_name]:
        raise ValueError(f"no operator is called {', '.join(unknown[:3])}")
    if ordered := [c for c in calls if by_name[c].ordered]:
        raise ValueError(f"{ordered[0]} draws random numbers or has another effect")
    region = region_of(graph, frozenset(calls))
    for other in before:
        if other.subproblem.region == region:
            raise ValueError(f"it is {other.subproblem.title!r} once more")
    gain = gain_of(context, graph, region)
    if gain < least:
        raise ValueError(f"it could win {100 * gain:.1f}% of the module's time at most")
    return Proposal(subproblem=Subproblem(name=name, title=title.strip(), region=region), gain=gain)


def call_ns(parts: Sequence[Part]) -> dict[str, float]:
    """The time of each operator, as far as the parts tell: a part's is spread evenly."""
    found: dict[str, float] = {}
    for part in parts:
        for call in part.calls:
            found[call] = found.get(call, 0.0) + part.ns / len(part.calls)
    return found


def gain_of(context: SearchContext, graph: Graph, region: Region) -> float:
    """The share of the module's time that a region takes above what its inputs and outputs take to move."""
    total_ns, times = sum(p.ns for p in context.parts), call_ns(context.parts)
    inside = set(region.nodes)
    mine_ns = sum(times.get(c, 0.0) for c in {n.origin for n in graph.nodes if n.name in inside})
    sizes = {n.name: n.bytes for n in graph.nodes}
    moved = sum(sizes[name] for name in (*region.inputs, *region.outputs))
    floor_ns = moved / context.machine.copy_bytes_per_s * 1e9
    return max(0.0, mine_ns - floor_ns) / total_ns if total_ns else 0.0
