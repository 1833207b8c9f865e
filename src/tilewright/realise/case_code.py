"""One case of a module as straight-line Python: fused kernels where the recipe has them, torch elsewhere."""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tilewright.facts.discovery import Named, StatementOfGraph
from tilewright.facts.pattern import Match, Pattern
from tilewright.ir.graph import SOURCES, Call, Graph, Node, Ref, Struct, Template
from tilewright.ir.program import Program

from .case_units import SEGMENT, Placed, Unit, Units, needed_when, takes_any_rows
from .in_place import written
from .once import constant
from .torch_code import TORCH_DTYPES, expression, literal, template, viewed


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseCode:
    """`parameters` and `body` make the method; `conditions` say, over its arguments, when it applies. `tensors` are the
    expressions of the tensors in these."""

    parameters: tuple[str, ...]
    keywords: tuple[str, ...]
    conditions: tuple[str, ...]
    body: tuple[str, ...]
    used: tuple[str, ...]  # ids of the patterns that it calls
    tensors: tuple[str, ...] = ()
    free: frozenset[str] = frozenset()  # nodes of the graph that may have any number of rows
    traced: str = ""  # where some may: the condition that there are as many as were traced
    once: tuple[str, ...] = ()  # the body of a function that gives `lasting`, the same at each call
    lasting: tuple[str, ...] = ()  # variables that `body` takes
    is_open: bool = False  # it holds for many sizes


def states(graph: Graph) -> tuple[str, ...]:
    """What a case of this graph reads of the module, as entries of a dict: `"path": (shape, dtype, whether gradients of
    it may be wanted)`."""
    found = [n for n in graph.nodes if n.op == "state"]
    return tuple(
        f"{n.path!r}: ({n.shape}, {TORCH_DTYPES.get(n.dtype, f'torch.{n.dtype}')}, "
        f"{n.name in graph.wanted or n.dtype not in _FLOATS})"
        for n in found
    )


def case_code(
    graph: Graph, patterns: Sequence[Pattern], *, target: str, by_need: bool = False,
    any_rows: Callable[[Program], bool] = lambda program: False, placed: Sequence[Placed] = (), once: bool = False,
) -> CaseCode:  # fmt: skip
    """The code of one case in which these patterns are fused, what was written for parts of it is `placed`, and nothing
    else is done. `by_need`: what only some results
    take is run where `needs` has one of them (see kernels/autograd.py). `any_rows`: of which programs the kernels take
    any number of rows, or say in their files which (`takes`); where all that is run does, so does the case.
    `once`: what depends on no argument and no state stands apart."""
    writer = _Lines(graph, patterns, target, placed)
    order = writer.order
    free = frozenset(graph.free) if takes_any_rows(graph, order, any_rows) else frozenset[str]()
    takers = list(dict.fromkeys(unit.what[0].id for unit in order if isinstance(unit.what, tuple)))
    arguments = writer.accept(free, takers)
    conditions = needed_when(graph.result, order) if by_need else [""] * len(order)
    given_under = {name: c for unit, c in zip(order, conditions, strict=True) for name in unit.gives}
    places, lasting = constant(graph, order, writer.kept) if once and not graph.wanted else (frozenset[int](), ())
    made = [line for i in sorted(places) for line in writer.emit(order[i])]
    body: list[str] = []
    for i, (unit, condition) in enumerate(zip(order, conditions, strict=True)):
        if i in places:
            continue
        lines = writer.emit(unit)
        gone = [n for n in writer.gone(i) if given_under[n] == condition]
        if gone and i + 1 < len(order):
            lines.append(writer.forget(gone))
        body += [f"if {condition}:", *(f"    {line}" for line in lines)] if condition else lines
    body += [*writer.updates(), f"return {writer.results() if by_need else template(graph.result, writer.names)}"]
    return CaseCode(
        parameters=writer.parameters, keywords=tuple(k for k, _ in graph.keywords), conditions=arguments.conditions,
        body=tuple(body), used=tuple(writer.used), tensors=tuple(arguments.tensors), free=free,
        traced=arguments.traced, once=tuple(made), lasting=tuple(writer.names[n] for n in lasting),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSteps:
    """A case in which nothing is fused: the statements, each with the call that it is (part) of; what names a value of
    the module's, or forgets one, is nobody's. `values`: what has a node's value while it is there."""

    parameters: tuple[str, ...]
    steps: tuple[StatementOfGraph, ...]
    values: tuple[Named, ...]


def plain_steps(graph: Graph, *, target: str) -> PlainSteps:
    writer = _Lines(graph, (), target)
    writer.accept(frozenset(), ())
    steps: list[StatementOfGraph] = []
    for i, unit in enumerate(writer.order):
        assert isinstance(unit.what, Call | Node)
        call = unit.what.name if isinstance(unit.what, Call) else unit.what.origin
        steps += [StatementOfGraph(call=call, text=line) for line in writer.emit(unit)]
        if gone := writer.gone(i):
            steps.append(StatementOfGraph(call="", text=writer.forget(gone)))
    values = tuple(Named(node=node, text=text) for node, text in writer.names.items())
    return PlainSteps(parameters=writer.parameters, steps=tuple(steps), values=values)


class _Arguments:
    """What a case asks of its arguments, so that they are as they were traced. `free`: nodes that may have any number
    of rows, of which the kernels `takers` say how many they take."""

    def __init__(
        self, graph: Graph, parameters: Sequence[str], target: str, *, free: frozenset[str], takers: Sequence[str]
    ) -> None:
        self._graph, self._target, self._free, self._takers = graph, target, free, takers
        self._nodes = {n.name: n for n in graph.nodes}
        self._first_shape: tuple[int, ...] = ()  # of the first value whose rows are free
        self.traced = ""  # the condition that it has the rows that were traced
        self.names: dict[str, str] = {}  # expressions of the tensors in them
        self.tensors: list[str] = []  # the same, in the order of the arguments
        given = [*zip(parameters, graph.arguments, strict=True), *graph.keywords]
        self.conditions = tuple(c for name, value in given for c in self._accept(name, value))

    def _accept(self, place: str, value: Template) -> list[str]:
        """Conditions under which the argument at `place` is as it was traced; binds the tensors in it."""
        if isinstance(value, Ref):
            node = self._nodes[value.name]
            self.names[value.name] = place
            self.tensors.append(place)
            device = f"{place}.is_cuda" if self._target == "cuda" else f"{place}.is_cpu"
            constant = self._graph.wanted and node.dtype in _FLOATS and value.name not in self._graph.wanted
            dtype = TORCH_DTYPES.get(node.dtype, f"torch.{node.dtype}")
            return [f"isinstance({place}, Tensor)", f"not {place}.is_nested", *self._shape(place, node),
                    f"{place}.dtype == {dtype}", device,
                    *([f"not {place}.requires_grad"] if constant else [])]  # fmt: skip
        if isinstance(value, Struct):
            keys: Sequence[str | int] = value.keys or range(len(value.items))
            items = [(f"{place}[{key!r}]", item) for key, item in zip(keys, value.items, strict=True)]
            inner = [condition for name, item in items for condition in self._accept(name, item)]
            return [f"isinstance({place}, {value.kind})", f"len({place}) == {len(value.items)}", *inner]
        return [f"{place} is None" if value is None else f"{place} == {literal(value)}"]

    def _shape(self, place: str, node: Node) -> list[str]:
        """Conditions on a tensor's shape: as it was traced, or with as many rows as the first that may have any."""
        if node.name not in self._free:
            return [f"{place}.shape == {literal(node.shape)}"]
        inner, first = node.shape[1:], self._first_shape
        if first:
            same = ", ".join(("shape[0]", *map(repr, inner))) if inner else "shape[0],"
            return [f"{place}.shape == {'shape' if inner == first[1:] else f'({same})'}"]
        self._first_shape, self.traced = node.shape, f"{place}.shape == {literal(node.shape)}"
        enough = " and ".join(f"{name}.takes(shape[0])" for name in self._takers)
        other = f"len(shape) == {len(node.shape)} and shape[1:] == {literal(inner)} and {enough}"
        return [f"((shape := {place}.shape) == {literal(node.shape)} or {other})"]


class _Lines:
    """The lines of a case. `names`: expressions of the values at hand; `used`: ids of what the lines call."""

    def __init__(self, graph: Graph, patterns: Sequence[Pattern], target: str, placed: Sequence[Placed] = ()) -> None:
        self._graph, self._target = graph, target
        self._units = Units(graph, patterns, placed)
        self.order, self.kept = self._units.ordered(), self._units.kept
        self._last = {name: i for i, unit in enumerate(self.order) for name in (*unit.gives, *unit.needs)}
        nodes = self._units.nodes
        self.parameters = tuple(_parameter(a, nodes, f"argument{i}") for i, a in enumerate(graph.arguments))
        self.names: dict[str, str] = {}
        self.used: dict[str, None] = {}
        self._device = repr(target)  # the expression of where constants are made

    def accept(self, free: frozenset[str], takers: Sequence[str]) -> _Arguments:
        """What is asked of the arguments; the tensors in them are at hand from here on."""
        arguments = _Arguments(self._graph, self.parameters, self._target, free=free, takers=takers)
        self.names |= arguments.names
        first = next((n for n in self._graph.nodes if n.op == "input"), None)
        if first is not None:
            self._device = f"{self.names[first.name]}.device"
        return arguments

    def gone(self, i: int) -> list[str]:
        """The variables that nothing needs any more after unit `i`, which is written."""
        names, nodes = {*self.order[i].gives, *self.order[i].needs} - self.kept, self._units.nodes
        local = (n for n in names if nodes[n].op not in SOURCES and self.names[n].isidentifier()
                 and self.names[n] not in self.parameters)  # fmt: skip
        return sorted(n for n in local if self._last[n] == i)

    def forget(self, gone: Sequence[str]) -> str:
        return "del " + ", ".join(self.names[n] for n in gone)

    def updates(self) -> list[str]:
        """What writes the module's state and the arguments."""
        detach = ".detach()" if self._graph.wanted else ""
        nodes = {u.target: self._units.nodes[u.target] for u in self._graph.updates}
        places = {t: _attribute(n.path) if n.op == "state" else self.names[t] for t, n in nodes.items()}
        there = {self._units.calls[name].results[0] for name in self._units.in_place}
        return [f"{places[u.target]}.copy_({self.names[u.value]}{detach})"
                for u in self._graph.updates if u.value not in there]  # fmt: skip

    def results(self) -> str:
        """The results that are needed."""
        assert isinstance(self._graph.result, Struct)
        found = [
            f"{self.names[item.name]} if needs[{i}] else None" if isinstance(item, Ref) else "None"
            for i, item in enumerate(self._graph.result.items)
        ]
        return f"({', '.join(found)},)"

    def emit(self, unit: Unit) -> list[str]:
        """The lines of a unit; what they give is at hand from here on."""
        match unit.what:
            case Call() as call:
                return [self._call(call, unit.gives)]
            case Node() as node:
                return self._node(node)
            case Placed() as placed:
                takes = [self.names[name] for name in placed.takes]
                return self._run(placed.name, placed.title, takes, [self._name(name) for name in placed.gives])
            case (pattern, match):
                return self._match(pattern, match)

    def _call(self, call: Call, gives: Collection[str]) -> str:
        args = [template(a, self.names) for a in call.args]
        args += [f"{key}={template(value, self.names)}" for key, value in call.kwargs]
        if write := self._units.in_place.get(call.name):
            self.names[call.results[0]] = self.names[write.target]
            return written(call, args)
        results = [self._name(r) if r in gives else "_" for r in call.results]
        left = results[0] if call.single else ", ".join(results) + ("," if len(results) == 1 else "")
        callee = f"torch.ops.{call.target}"
        if call.target.startswith(SEGMENT):
            callee = f"{call.name}.run"
            self.used[call.name] = None
        return f"{left} = {callee}({', '.join(args)})"

    def _node(self, node: Node) -> list[str]:
        dtype = TORCH_DTYPES.get(node.dtype, f"torch.{node.dtype}")
        if node.op == "state":
            self.names[node.name] = value = _attribute(node.path)
            if not (self._graph.wanted and node.dtype in _FLOATS):
                return []
            # What autograd keeps of it must not be what is written afterwards.
            written = any(u.target == node.name for u in self._graph.updates)
            return [f"{self._name(node.name)} = {value}.clone()"] if written else []
        if node.op == "constant":
            device, values = json.loads(node.path)
            made = f"torch.tensor({literal(values)}, dtype={dtype}, device={device!r}).reshape({literal(node.shape)})"
        else:
            given = (*node.args, *(p.value for p in node.at if p.value))
            args = [self.names[a] if isinstance(a, str) else literal(a) for a in given]
            made = expression(node, [self._units.nodes[s] for s in node.sources], args, self._device)
        return [f"{self._name(node.name)} = {made}"]

    def _match(self, pattern: Pattern, match: Match) -> list[str]:
        nodes, program = self._units.nodes, pattern.program
        operands = [
            viewed(self.names[bind.node], nodes[bind.node].shape, bind, spec.shape)
            for bind, spec in zip(match.operands, program.operands, strict=True)
        ]
        names = [self._name(b.node) for b in match.outputs]
        views = [
            (name, viewed(name, spec.shape, bind, nodes[bind.node].shape))
            for bind, spec, name in zip(match.outputs, program.outputs, names, strict=True)
        ]
        ran = self._run(pattern.id, pattern.title, operands, names)
        return [*ran, *(f"{name} = {view}" for name, view in views if view != name)]

    def _run(self, name: str, title: str, takes: Sequence[str], gives: Sequence[str]) -> list[str]:
        """The call of a file of the candidate, below its title."""
        self.used[name] = None
        left = ", ".join(gives) + ("," if len(gives) == 1 else "")
        return [f"# {title}", f"{left} = {name}.run({', '.join(takes)})"]

    def _name(self, node: str) -> str:
        """The variable of a value: its operator's name in the graph where it is the one result."""
        call = self._units.calls.get(self._units.nodes[node].origin)
        name = call.name if call is not None and call.single and call.results == (node,) else node
        if keyword.iskeyword(name) or name in _TAKEN or name in self.parameters:
            name += "_"
        self.names[node] = name
        return name


_TAKEN = frozenset({"self", "torch", "needs", "args", "kwargs", "super", "shape", "Tensor"})
_FLOATS = frozenset({"f64", "f32", "f16", "bf16"})


def _attribute(path: str) -> str:
    """The expression of a parameter or buffer; children that have numbers for names need getattr."""
    value = "self"
    for part in path.split("."):
        plain = part.isidentifier() and not keyword.iskeyword(part)
        value = f"{value}.{part}" if plain else f"getattr({value}, {part!r})"
    return value


def _parameter(argument: Template, nodes: dict[str, Node], default: str) -> str:
    """The name of a positional parameter: the traced one's where it is a tensor."""
    name = nodes[argument.name].path if isinstance(argument, Ref) else default
    if not name.isidentifier() or keyword.iskeyword(name) or name in _TAKEN or name.startswith("fused_"):
        return default
    return name
