"""GELU that a module writes out as `0.5 * x * (1 + erf(x / sqrt(2)))`, realised by torch's own gelu.

The object that is registered has the shape of `tilewright.realise.library.Library`: it finds parts of a graph, names
the settings worth trying, and renders a candidate for a part. Tilewright measures and judges what it gives as it does
its own kernels; what is wrong or slower is not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.facts.candidate import SourceFile
from tilewright.facts.regions import region_of
from tilewright.facts.space import Point, point
from tilewright.ir.graph import Call, Graph, Ref
from tilewright.realise.library import Device, LibraryMatch, Refused

_CODE = '''"""GELU by torch's own gelu."""

import torch

_approximate = "none"


def configure(approximate):
    global _approximate
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate {approximate!r}: choose none or tanh")
    _approximate = approximate


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x, approximate=_approximate)
'''
_FLOATS = ("f32", "f64", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class WrittenOut(LibraryMatch):
    """One GELU of the graph."""


class Gelu:
    """The realiser: see the entry point in pyproject.toml."""

    name = "gelu-realiser"

    def finds(self, graph: Graph, device: Device) -> Sequence[LibraryMatch] | Refused:
        makers = {call.results[0]: call for call in graph.calls if len(call.results) == 1}
        nodes = {node.name: node for node in graph.nodes}
        found: list[LibraryMatch] = []
        for erf in (call for call in graph.calls if call.label == "erf"):
            calls = _gelu(erf, makers, graph)
            if calls is None or nodes[erf.results[0]].dtype not in _FLOATS:
                continue
            try:
                region = region_of(graph, frozenset(call.name for call in calls))
            except ValueError:
                continue
            if len(region.inputs) == len(region.outputs) == 1:
                found.append(WrittenOut(region, "GELU"))
        return found

    def points(self, match: LibraryMatch, device: Device) -> tuple[Point, ...]:
        return (point(approximate="none"), point(approximate="tanh"))  # the judge refuses what is not accurate enough

    def render(self, match: LibraryMatch, device: Device) -> tuple[SourceFile, ...]:
        return (SourceFile(path="model.py", text=_CODE),)


def _gelu(erf: Call, makers: dict[str, Call], graph: Graph) -> tuple[Call, ...] | None:
    """The operators of `0.5 * x * (1 + erf(x / sqrt(2)))` around this erf, in whichever order the factors stand."""
    inner = _maker(erf.args[0], makers)
    x = _scaled(inner, 1 / math.sqrt(2))
    plus = _reader(erf, graph, "add", 1)
    outer = _reader(plus, graph, "mul", None)
    if inner is None or x is None or plus is None or outer is None:
        return None
    half = next((call for call in (_maker(a, makers) for a in outer.args) if call is not None and call != plus), None)
    if _scaled(half, 0.5) == x and half is not None:
        return (inner, erf, plus, outer, half)  # (0.5 * x) * (1 + ...)
    last = _reader(outer, graph, "mul", 0.5)
    if x in outer.args and last is not None:
        return (inner, erf, plus, outer, last)  # 0.5 * (x * (1 + ...))
    return None


def _maker(value: object, makers: dict[str, Call]) -> Call | None:
    return makers.get(value.name) if isinstance(value, Ref) else None


def _scaled(call: Call | None, factor: float) -> Ref | None:
    """What this operator multiplies by the factor."""
    if call is None or call.label not in ("mul", "div") or len(call.args) != 2:
        return None
    (value, number) = call.args
    if not isinstance(value, Ref) or not isinstance(number, int | float):
        return None
    given = number if call.label == "mul" else 1 / number
    return value if math.isclose(given, factor, rel_tol=1e-6) else None


def _reader(call: Call | None, graph: Graph, label: str, number: float | None) -> Call | None:
    """The one operator that reads the result, of this name and, where it is given, with this number beside it."""
    if call is None:
        return None
    readers = [c for c in graph.calls if call.results[0] in c.sources]
    if len(readers) != 1 or readers[0].label != label:
        return None
    return readers[0] if number is None or number in readers[0].args else None
