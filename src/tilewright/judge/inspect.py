"""What a call spends its time in, by torch's profiler: kernel by kernel, or on the CPU operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ..facts.outcome import Inspected, Launches, NamedTime
from ..facts.problem import Target
from ..facts.profile import KernelProfile, Measure
from ..ir.graph import Graph
from ..ir.program import TRANSCENDENTAL
from .client import Cell
from .memory.case_memory import CaseMemory
from .profile.changes import of_operators
from .profile.limits import ProfiledCall
from .profile.origins import origin
from .wire import messages as wire

_MOST = 30  # names told of
_MOST_OPERATORS = 8  # of which evidence is given


def seen(cell: Cell, memory: CaseMemory) -> wire.Profiled:
    """One call on what lies in slot 0, of the module that `cell` holds, after one that warms up. Raises CellFault."""
    request = wire.Profile(args=memory.described.args, inputs=memory.sets.slot(0), launches=True)
    for _ in range(2):
        found = cell.ask(request, wire.Profiled, limit_s=memory.limits.call_s)
    return found


def summed(spent: Sequence[wire.SpentClocks], *, target: Target, launches: Launches | None = None) -> Inspected:
    """The entries added up by name, the longest first."""
    found: dict[str, list[float]] = {}
    for entry in spent:
        found.setdefault(entry.name, []).append(entry.ns)
    named = [NamedTime(name=name, origin=origin(name, target), times=len(ns), ns=sum(ns)) for name, ns in found.items()]
    named.sort(key=lambda n: -n.ns)
    total = sum(n.ns for n in named)
    return Inspected(longest=tuple(named[:_MOST]), kinds=len(named), ns=total, launches=launches)


def evaluations(graph: Graph | None) -> int:
    """Of transcendental functions, in one call of a module; 0 where it could not be traced."""
    return sum(prod(node.shape) for node in graph.nodes if node.op in TRANSCENDENTAL) if graph is not None else 0


def operators(found: Inspected, call: ProfiledCall) -> tuple[KernelProfile, ...]:
    """Torch's operators in the form in which kernels are told of."""
    return tuple(
        KernelProfile(
            name=n.name, origin=n.origin, source="operators", times=n.times, ns=n.ns, limit="unknown",
            evidence=(Measure(name="share of the call", value=100 * n.ns / call.ns, unit="%"),),
        )
        for n in found.longest[:_MOST_OPERATORS]
    )  # fmt: skip


def of_the_cpu(found: Inspected, call: ProfiledCall) -> Inspected:
    """With what limits a call on the CPU."""
    return replace(found, diagnosis=of_operators(operators(found, call), call))
