"""A Subproblem becomes a Problem of its own: its operators as a module, its inputs like those that it really gets."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tilewright.facts.discovery import InputStatistics
from tilewright.facts.pattern import Region, Subproblem
from tilewright.facts.problem import Problem
from tilewright.ir.graph import TRACED, VIEWS, Call, Graph, Node, Ref, Struct, Template

from .case_code import case_code
from .templates import template
from .torch_code import TORCH_DTYPES

_FREE = VIEWS | {"slice", "index"}  # what any region may compute for itself
_LANES = 16  # sizes of one shape class are as even as each other, up to this


class NotAlone(Exception):
    """Why a region can't be run by itself, in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubproblemCode:
    """`key` is equal for subproblems that compute the same on tensors of the same shapes, strides and dtypes, in
    whichever module they stand, whatever the values. `shape_class` is equal for those that differ, beside that, in the
    size of the first argument's first dimension, and there not by much: of the same nearest power of two, and as even.
    "" where that dimension has no size to vary."""

    problem: Problem
    key: str
    shape_class: str


def subproblem_code(
    problem: Problem, graph: Graph, subproblem: Subproblem, spreads: Sequence[InputStatistics]
) -> SubproblemCode:
    """Raises NotAlone where the subproblem can't be run by itself, or nothing is known of a value that enters it."""
    seen = {s.node: s for s in spreads}
    cut = _Cut(graph, subproblem.region)
    alone = cut.graph()
    code = case_code(alone, (), target=problem.target)
    missing = [name for name in cut.arguments if name not in seen]
    if missing:
        raise NotAlone(f"nothing is known of {', '.join(missing[:3])}, which enter(s) it")
    entering = [seen[name] for name in cut.arguments]
    text = template(__package__, "piece.py.jinja").render(
        title=subproblem.title, module=problem.name, parameters=code.parameters, body=code.body,
        inputs=[_described(s) for s in entering], drawing=_drawing(),
    )  # fmt: skip
    name = re.sub(r"\W+", "_", subproblem.title).strip("_")[:40] or subproblem.name
    made = replace(
        problem, name=name, source=f"{text.rstrip()}\n", cases=("{}",), mode="inference",
        path=str(Path(problem.path).with_name(f"{name}.py")) if problem.path else "",
    )  # fmt: skip
    what = (problem.target, problem.precision, code.parameters)
    shapes = [(s.shape, s.stride, s.dtype) for s in entering]
    return SubproblemCode(
        problem=made, key=_digest((*what, code.body, shapes)), shape_class=_class_of(what, code.body, shapes)
    )


def _class_of(what: tuple[object, ...], body: Sequence[str], shapes: Sequence[tuple[Any, Any, str]]) -> str:
    """The digest of a subproblem in which the size of its rows stands for all that are near."""
    rows = shapes[0][0][0] if shapes and shapes[0][0] else 0
    if rows < 2:
        return ""
    near = (round(math.log2(rows)), math.gcd(rows, _LANES))
    told = [re.sub(rf"\b{rows}\b", "rows", line) for line in body]
    inner = [
        (near if shape[:1] == (rows,) else shape[:1], shape[1:], stride[1:], dtype) for shape, stride, dtype in shapes
    ]
    return _digest((*what, told, inner))


def _digest(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


def plain_statistics(graph: Graph, names: Sequence[str]) -> Iterator[InputStatistics]:
    """What stands for values of which nothing was seen: of the normal distribution, or 0 and 1 of what counts, as
    dense in memory as the graph has them."""
    nodes = {n.name: n for n in graph.nodes}
    for node in (nodes[name] for name in names):
        floats = node.dtype.startswith(("f", "bf"))
        low, high, mean, deviation, zeros = (-4.0, 4.0, 0.0, 1.0, 0.0) if floats else (1.0, 1.0, 1.0, 0.0, 0.5)
        yield InputStatistics(
            node=node.name, shape=node.shape, stride=_dense(node), dtype=node.dtype, low=low, high=high, mean=mean,
            deviation=deviation, zeros=zeros,
        )  # fmt: skip


def _dense(node: Node) -> tuple[int, ...]:
    strides, step = [0] * len(node.shape), 1
    for d in reversed(node.order or range(len(node.shape))):
        strides[d], step = step, step * max(node.shape[d], 1)
    return tuple(strides)


def arguments(graph: Graph, region: Region) -> tuple[str, ...]:
    """The nodes whose values the module of a region takes, in order: its inputs, and what its operators take beside
    them of the module's own inputs and state. Raises NotAlone as `subproblem_code`."""
    return _Cut(graph, region).arguments


def alone(graph: Graph, region: Region) -> Graph:
    """The graph of a region by itself, which takes `arguments` and gives the region's outputs. Raises as they do."""
    return _Cut(graph, region).graph()


class _Cut:
    """What of a graph a region needs, walked from its outputs to its inputs."""

    def __init__(self, graph: Graph, region: Region) -> None:
        self._graph = graph
        self._region = region
        self._nodes = {n.name: n for n in graph.nodes}
        self._calls = {c.name: c for c in graph.calls}
        self._inside = set(region.nodes)
        self._prologue = set(region.inputs)
        self._whole: dict[str, bool] = {}
        self._kept: dict[str, Node] = {}
        self._run: dict[str, Call] = {}
        self._more: set[str] = set()
        self._walk()
        order = [n.name for n in graph.nodes]
        self.arguments = (*region.inputs, *(n for n in order if n in self._more))

    def graph(self) -> Graph:
        """The region's own, its values renamed in their order, so that equal ones read the same everywhere."""
        names = {name: f"x{i}" for i, name in enumerate(self.arguments)}
        ordered = [n for n in self._graph.nodes if n.name in self._kept]
        for number, node in enumerate(ordered):
            label = self._calls[node.origin].label if node.origin in self._calls else node.op
            names[node.name] = f"{re.sub(r'[^a-z0-9]+', '_', label.lower())}_{number}"
        calls = {c.name: f"call_{i}" for i, c in enumerate(c for c in self._graph.calls if c.name in self._run)}
        inputs = [self._as_input(name, names[name]) for name in self.arguments]
        nodes = [
            replace(n.renamed(names), name=names[n.name], origin=calls.get(n.origin, "") if self._is_run(n) else "")
            for n in ordered
        ]
        outputs = tuple(names[name] for name in self._region.outputs)
        result: Template = Struct(kind="tuple", items=tuple(Ref(name=n) for n in outputs))
        return Graph(
            nodes=(*inputs, *nodes), outputs=outputs,
            calls=tuple(_renamed_call(c, calls[c.name], names) for c in self._graph.calls if c.name in self._run),
            arguments=tuple(Ref(name=names[n]) for n in self.arguments),
            result=Ref(name=outputs[0]) if len(outputs) == 1 else result,
        )  # fmt: skip

    def _as_input(self, name: str, new: str) -> Node:
        node = self._nodes[name]
        return Node(name=new, op="input", shape=node.shape, dtype=node.dtype, path=new, order=node.order)

    def _walk(self) -> None:
        todo = list(self._region.outputs)
        while todo:
            name = todo.pop()
            if name in self._prologue or name in self._kept or name in self._more:
                continue
            node = self._nodes[name]
            if node.op in ("input", "state"):
                self._more.add(name)
                continue
            if node.op != "constant" and node.op not in _FREE and name not in self._inside:
                raise NotAlone(f"it takes {name}, which is computed elsewhere")
            self._kept[name] = node
            if self._is_run(node):
                call = self._run[node.origin] = self._calls[node.origin]
                todo += call.sources
            elif node.op == "call":
                raise NotAlone(f"{name} comes of {self._calls[node.origin].target}, of which it takes a part")
            else:
                todo += node.sources

    def _is_run(self, node: Node) -> bool:
        """Whether a value is made by running the operator that it came of."""
        call = self._calls.get(node.origin)
        if call is None or node.name not in call.results or node.op in _FREE:
            return False
        if call.name not in self._whole:
            plain = not call.ordered and not call.target.startswith(TRACED)
            self._whole[call.name] = plain and all(map(self._is_here, call.sources))
        return self._whole[call.name]

    def _is_here(self, name: str) -> bool:
        """Whether a value is there inside of the region, as far as views of what enters it, and positions."""
        node = self._nodes[name]
        if name in self._prologue or name in self._inside or node.op in ("input", "state", "constant"):
            return True
        return node.op in _FREE and all(map(self._is_here, node.sources))


def _renamed_call(call: Call, name: str, names: Mapping[str, str]) -> Call:
    return replace(
        call, name=name, args=tuple(_renamed(a, names) for a in call.args),
        kwargs=tuple((key, _renamed(value, names)) for key, value in call.kwargs),
        results=tuple(names.get(r, "") for r in call.results),
    )  # fmt: skip


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Ref):
        return Ref(name=names[value.name])
    if isinstance(value, Struct):
        return replace(value, items=tuple(_renamed(item, names) for item in value.items))
    return value


def _described(spread: InputStatistics) -> str:
    """The arguments of `drawn`."""
    numbers = [f"{v:.6g}" for v in (spread.low, spread.high, spread.mean, spread.deviation)]
    shares = f"({spread.zeros:.4g}, {spread.infinite:.4g})"
    dtype = TORCH_DTYPES.get(spread.dtype, spread.dtype).removeprefix("torch.")
    return ", ".join([repr(spread.shape), repr(spread.stride), repr(dtype), *numbers, shares])


@cache
def _drawing() -> str:
    """The functions of drawn.py."""
    text = files(__package__).joinpath("drawn.py").read_text(encoding="utf-8")
    return text[text.index("def drawn") :]
