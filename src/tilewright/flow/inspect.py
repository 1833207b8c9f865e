"""What a call spends its time in, by torch's profiler: kernel by kernel, or on the CPU operator by operator."""

from __future__ import annotations

from collections.abc import Sequence

from ..cell import wire
from ..edges.sandbox.cell import Cell
from ..edges.sandbox.room import Room
from ..facts.outcome import Inspected, Launches, NamedTime
from ..facts.problem import Target
from ..stages.profiling.origins import origin

_MOST = 30  # names told of


def inspected(cell: Cell, room: Room, *, target: Target) -> Inspected:
    """One call on what lies in slot 0, of the module that `cell` holds, after one that warms up. Raises CellFault."""
    request = wire.Profile(args=room.described.args, inputs=room.slot(0))
    for _ in range(2):
        seen = cell.ask(request, wire.Profiled, limit_s=room.limits.call_s)
    launches = Launches(count=seen.launches, cost_ns=seen.launch_ns) if seen.launches else None
    return summed(seen.spent, target=target, launches=launches)


def summed(spent: Sequence[wire.Spent], *, target: Target, launches: Launches | None = None) -> Inspected:
    """The entries added up by name, the longest first."""
    found: dict[str, list[float]] = {}
    for entry in spent:
        found.setdefault(entry.name, []).append(entry.ns)
    named = [NamedTime(name=name, origin=origin(name, target), times=len(ns), ns=sum(ns)) for name, ns in found.items()]
    named.sort(key=lambda n: -n.ns)
    total = sum(n.ns for n in named)
    return Inspected(longest=tuple(named[:_MOST]), kinds=len(named), ns=total, launches=launches)
