"""One case of a module as straight-line Python: fused kernels where the recipe has them, torch elsewhere."""

from __future__ import annotations

import heapq
import json
import keyword
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.facts.discovery import Named, StatementOfGraph
from tilewright.facts.pattern import Bind, Match, Pattern
from tilewright.ir.graph import SOURCES, TRACED, VIEWS, Call, Graph, Node, Ref, Struct, Template
from tilewright.ir.program import Program

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A call of what was written for a part of the graph, at one place of it: the nodes that it takes and gives."""

    name: str
    title: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """One line to be: it gives some values and needs others."""

    what: Node | Call | Placed | tuple[Pattern, Match]
    gives: tuple[str, ...]
    needs: tuple[str, ...]


def states(graph: Graph) -> tuple[str, ...]:
    """What a case of this graph reads of the module, as entries of a dict: `"path": (shape, dtype, whether gradients of
    it may be wanted)`."""
    found = [n for n in graph.nodes if n.op == "state"]
    return tuple(
        f"{n.path!r}: ({n.shape}, {TORCH_DTYPES.get(n.dtype, f'torch.{n.dtype}')}, "
        f"{n.name in graph.wanted or n.dtype not in _FLOATS})"
        for n in found
    )


# How the target of a call begins that runs a segment's file.
SEGMENT = "segment."


def case_code(
    graph: Graph, patterns: Sequence[Pattern], *, target: str, by_need: bool = False,
    any_rows: Callable[[Program], bool] = lambda program: False, placed: Sequence[Placed] = (), once: bool = False,
) -> CaseCode:  # fmt: skip
    """The code of one case in which these patterns are fused, what was written for parts of it is `placed`, and nothing
    else is done. `by_need`: what only some results
    take is run where `needs` has one of them (see kernels/autograd.py). `any_rows`: of which programs the kernels take
    any number of rows, or say in their files which (`takes`); where all that is run does, so does the case.
    `once`: what depends on no argument and no state stands apart."""
    writer = _Writer(graph, patterns, target, by_need=by_need, any_rows=any_rows, placed=placed)
    return writer.finish(once=once and not graph.wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSteps:
    """A case in which nothing is fused: the statements, each with the call that it is (part) of; what names a value of
    the module's, or forgets one, is nobody's. `values`: what has a node's value while it is there."""

    parameters: tuple[str, ...]
    steps: tuple[StatementOfGraph, ...]
    values: tuple[Named, ...]


def plain_steps(graph: Graph, *, target: str) -> PlainSteps:
    writer = _Writer(graph, (), target, by_need=False, any_rows=lambda program: False)
    steps = writer.steps()
    values = tuple(Named(node=node, text=text) for node, text in writer.names.items())
    return PlainSteps(parameters=writer.parameters, steps=steps, values=values)


class _Writer:
    def __init__(
        self, graph: Graph, patterns: Sequence[Pattern], target: str, *, by_need: bool,
        any_rows: Callable[[Program], bool], placed: Sequence[Placed] = (),
    ) -> None:  # fmt: skip
        self.graph, self.target, self.by_need, self.any_rows = graph, target, by_need, any_rows
        self.free: frozenset[str] = frozenset()
        self.takers: list[str] = []  # patterns whose kernels are to be asked whether they take so many rows
        self.first_shape: tuple[int, ...] = ()  # of the first value whose rows are free
        self.traced = ""  # the condition that it has the rows that were traced
        self.nodes = {n.name: n for n in graph.nodes}
        self.calls = {c.name: c for c in graph.calls}
        self.position = {n.name: i for i, n in enumerate(graph.nodes)}
        self.matches = {b.node: (p, s) for p in patterns for s in p.matches if self._is_here(s) for b in s.outputs}
        self.placed = {node: p for p in placed for node in p.gives}
        # Calls of which some part, but not the result, comes out of a kernel: what is left is run part by part.
        self.opened = {self.nodes[name].origin for name in (*self.matches, *self.placed)}
        self.parameters = tuple(_parameter(a, self.nodes, f"argument{i}") for i, a in enumerate(graph.arguments))
        self.names: dict[str, str] = {}  # expressions of the values at hand
        self.tensors: list[str] = []  # and of those in the arguments
        self.used: dict[str, None] = {}
        self.body: list[str] = []

    def finish(self, *, once: bool = False) -> CaseCode:
        kept = {*self.graph.outputs, *(u.value for u in self.graph.updates)}
        order = self._ordered(self._units(kept))
        self.free = frozenset(self.graph.free) if self._takes_any_rows(order) else frozenset()
        self.takers = list(dict.fromkeys(unit.what[0].id for unit in order if isinstance(unit.what, tuple)))
        conditions = self._accepted()
        gone_after = self._gone(order, kept)
        conditions_of = self._conditions(order) if self.by_need else [""] * len(order)
        given_under = {name: c for unit, c in zip(order, conditions_of, strict=True) for name in unit.gives}
        places, lasting = constant(self.graph, order, kept) if once else (frozenset(), ())
        for i in sorted(places):
            self._emit(order[i])
        made, self.body = self.body, []
        for i, (unit, condition) in enumerate(zip(order, conditions_of, strict=True)):
            if i in places:
                continue
            start = len(self.body)
            self._emit(unit)
            gone = [n for n in gone_after(i) if given_under[n] == condition]
            if gone and i + 1 < len(order):
                self.body.append("del " + ", ".join(self.names[n] for n in gone))
            if condition:
                self.body[start:] = [f"if {condition}:", *(f"    {line}" for line in self.body[start:])]
        detach = ".detach()" if self.graph.wanted else ""
        self.body += [f"{self._written(u.target)}.copy_({self.names[u.value]}{detach})" for u in self.graph.updates]
        self.body.append(f"return {self._results() if self.by_need else template(self.graph.result, self.names)}")
        return CaseCode(parameters=self.parameters, keywords=tuple(k for k, _ in self.graph.keywords),
                        conditions=tuple(conditions), body=tuple(self.body), used=tuple(self.used),
                        tensors=tuple(self.tensors), free=self.free, traced=self.traced,
                        once=tuple(made), lasting=tuple(self.names[n] for n in lasting))  # fmt: skip

    def steps(self) -> tuple[StatementOfGraph, ...]:
        """See plain_steps."""
        self._accepted()
        kept = {*self.graph.outputs, *(u.value for u in self.graph.updates)}
        order = self._ordered(self._units(kept))
        gone_after = self._gone(order, kept)
        steps: list[StatementOfGraph] = []
        for i, unit in enumerate(order):
            start = len(self.body)
            self._emit(unit)
            assert isinstance(unit.what, Call | Node)
            call = unit.what.name if isinstance(unit.what, Call) else unit.what.origin
            steps += [StatementOfGraph(call=call, text=line) for line in self.body[start:]]
            if gone := gone_after(i):
                steps.append(StatementOfGraph(call="", text="del " + ", ".join(self.names[n] for n in gone)))
        return tuple(steps)

    def _accepted(self) -> list[str]:
        """Conditions under which all arguments are as they were traced; binds the tensors in them."""
        given = [*zip(self.parameters, self.graph.arguments, strict=True), *self.graph.keywords]
        return [c for name, value in given for c in self._accept(name, value)]

    def _gone(self, order: Sequence[_Unit], kept: Collection[str]) -> Callable[[int], list[str]]:
        """The variables that nobody needs any more after the unit of that number, once it is written."""
        last = {name: i for i, unit in enumerate(order) for name in (*unit.gives, *unit.needs)}

        def gone(i: int) -> list[str]:
            names = {*order[i].gives, *order[i].needs}
            return sorted(n for n in names if last[n] == i and n not in kept and self._local(n))

        return gone

    def _written(self, target: str) -> str:
        node = self.nodes[target]
        return _attribute(node.path) if node.op == "state" else self.names[target]

    def _takes_any_rows(self, order: Sequence[_Unit]) -> bool:
        """Whether all takes any number of rows: kernels, just of the values that have as many, and torch's calls."""
        free = set(self.graph.free) if any(isinstance(unit.what, tuple) for unit in order) else set()
        for unit in order:
            if isinstance(unit.what, Node) and free.isdisjoint((unit.what.name, *unit.what.sources)):
                continue
            if isinstance(unit.what, Call) and not unit.what.target.startswith((SEGMENT, TRACED)):
                continue  # no number of rows is among its arguments, or none would be free
            if not isinstance(unit.what, tuple) or not self.any_rows(unit.what[0].program):
                return False
            pattern, site = unit.what
            program = pattern.program
            shapes = [o.shape for o in program.operands] + [o.shape for o in program.outputs]
            for bind, shape in zip((*site.operands, *site.outputs), shapes, strict=True):
                node = self.nodes[bind.node]
                plain = shape == node.shape and bind.order == tuple(sorted(bind.order))
                if (node.name in free) != (shape[:1] == program.domain[:1]) or (node.name in free and not plain):
                    return False
        return bool(free)

    def _is_here(self, site: Match) -> bool:
        """Whether a match stands in this graph, and not in another that has some of its values for inputs."""
        return all(n in self.nodes and self.nodes[n].op != "input" for n in site.nodes)

    def _conditions(self, order: Sequence[_Unit]) -> list[str]:
        """For each unit, under which condition one of its results is needed; "": always."""
        assert isinstance(self.graph.result, Struct)
        asked = {i: item.name for i, item in enumerate(self.graph.result.items) if isinstance(item, Ref)}
        reached: dict[str, set[int]] = {}
        for i, name in asked.items():
            reached.setdefault(name, set()).add(i)
        found = []
        for unit in reversed(order):
            mine = set().union(*(reached.get(n, set()) for n in unit.gives))
            for name in unit.needs:
                reached.setdefault(name, set()).update(mine)
            found.append("" if mine == set(asked) else " or ".join(f"needs[{i}]" for i in sorted(mine)))
        return found[::-1]

    def _results(self) -> str:
        """The results that are needed."""
        assert isinstance(self.graph.result, Struct)
        found = [
            f"{self.names[item.name]} if needs[{i}] else None" if isinstance(item, Ref) else "None"
            for i, item in enumerate(self.graph.result.items)
        ]
        return f"({', '.join(found)},)"

    def _local(self, name: str) -> bool:
        return self.nodes[name].op not in SOURCES and self.names[name].isidentifier()

    # --- arguments -----------------------------------------------------------------------------------------------

    def _accept(self, place: str, value: Template) -> list[str]:
        """Conditions under which the argument at `place` is as it was traced; binds the tensors in it."""
        if isinstance(value, Ref):
            node = self.nodes[value.name]
            self.names[value.name] = place
            self.tensors.append(place)
            device = f"{place}.is_cuda" if self.target == "cuda" else f"{place}.is_cpu"
            constant = self.graph.wanted and node.dtype in _FLOATS and value.name not in self.graph.wanted
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
        if node.name not in self.free:
            return [f"{place}.shape == {literal(node.shape)}"]
        inner, first = node.shape[1:], self.first_shape
        if first:
            same = ", ".join(("shape[0]", *map(repr, inner))) if inner else "shape[0],"
            return [f"{place}.shape == {'shape' if inner == first[1:] else f'({same})'}"]
        self.first_shape, self.traced = node.shape, f"{place}.shape == {literal(node.shape)}"
        enough = " and ".join(f"{name}.takes(shape[0])" for name in self.takers)
        other = f"len(shape) == {len(node.shape)} and shape[1:] == {literal(inner)} and {enough}"
        return [f"((shape := {place}.shape) == {literal(node.shape)} or {other})"]

    # --- what to run ---------------------------------------------------------------------------------------------

    def _units(self, wanted: Iterable[str]) -> list[_Unit]:
        """Everything that must run to have the wanted values."""
        todo = list(wanted)
        found: dict[str, _Unit] = {}
        units: list[_Unit] = [self._of_call(c) for c in self.graph.calls if c.ordered]
        for unit in units:
            found.update(dict.fromkeys(unit.gives, unit))
            todo += unit.needs
        while todo:
            name = todo.pop()
            if name in found or self.nodes[name].op == "input":
                continue
            unit = self._provider(name)
            found.update(dict.fromkeys(unit.gives, unit))
            units.append(unit)
            todo += unit.needs
        return units

    def _provider(self, name: str) -> _Unit:
        if name in self.placed:
            there = self.placed[name]
            return _Unit(what=there, gives=there.gives, needs=tuple(dict.fromkeys(there.takes)))
        if name in self.matches:
            pattern, site = self.matches[name]
            return _Unit(what=(pattern, site), gives=tuple(b.node for b in site.outputs),
                         needs=tuple(b.node for b in site.operands))  # fmt: skip
        node = self.nodes[name]
        call = self.calls.get(node.origin)
        whole = call is not None and name in call.results and node.op not in VIEWS | {"slice"}
        whole = whole and call is not None and not call.target.startswith(TRACED)  # torch has no such operator
        if call is not None and (node.op == "call" or (whole and call.name not in self.opened)):
            return self._of_call(call)
        return _Unit(what=node, gives=(name,), needs=tuple(dict.fromkeys(node.sources)))

    def _of_call(self, call: Call) -> _Unit:
        gives = tuple(dict.fromkeys(r for r in call.results if r and r not in self.matches and r not in self.placed))
        return _Unit(what=call, gives=gives, needs=tuple(dict.fromkeys(call.sources)))

    def _ordered(self, units: Sequence[_Unit]) -> list[_Unit]:
        """In an order in which they can run, near that of the graph; calls with effects keep theirs."""
        maker = {name: i for i, unit in enumerate(units) for name in unit.gives}
        waits = [{maker[n] for n in unit.needs if n in maker} - {i} for i, unit in enumerate(units)]
        effects = [i for i, unit in enumerate(units) if isinstance(unit.what, Call) and unit.what.ordered]
        for before, after in pairwise(effects):
            waits[after].add(before)
        readers: dict[int, list[int]] = {}
        for i, needed in enumerate(waits):
            for j in needed:
                readers.setdefault(j, []).append(i)
        ready = [(self._place(units[i]), i) for i, needed in enumerate(waits) if not needed]
        heapq.heapify(ready)
        order = []
        while ready:
            order.append(units[i := heapq.heappop(ready)[1]])
            for j in readers.get(i, ()):
                waits[j].discard(i)
                if not waits[j]:
                    heapq.heappush(ready, (self._place(units[j]), j))
        if len(order) != len(units):
            raise ValueError("the recipe's patterns wait for one another")
        return order

    def _place(self, unit: _Unit) -> int:
        return max((self.position[name] for name in unit.gives), default=0)

    # --- lines ---------------------------------------------------------------------------------------------------

    def _emit(self, unit: _Unit) -> None:
        if isinstance(unit.what, Call):
            self._emit_call(unit.what, unit.gives)
        elif isinstance(unit.what, Node):
            self._emit_node(unit.what)
        elif isinstance(unit.what, Placed):
            self._emit_placed(unit.what)
        else:
            self._emit_site(*unit.what)

    def _emit_call(self, call: Call, gives: Collection[str]) -> None:
        args = [template(a, self.names) for a in call.args]
        args += [f"{key}={template(value, self.names)}" for key, value in call.kwargs]
        results = [self._name(r) if r in gives else "_" for r in call.results]
        left = results[0] if call.single else ", ".join(results) + ("," if len(results) == 1 else "")
        callee = f"torch.ops.{call.target}"
        if call.target.startswith(SEGMENT):
            callee = f"{call.name}.run"
            self.used[call.name] = None
        self.body.append(f"{left} = {callee}({', '.join(args)})")

    def _emit_node(self, node: Node) -> None:
        if node.op == "state":
            self.names[node.name] = _attribute(node.path)
            if self.graph.wanted and node.dtype in _FLOATS and any(u.target == node.name for u in self.graph.updates):
                # What autograd keeps of it must not be what is written afterwards.
                self.body.append(f"{self._name(node.name)} = {_attribute(node.path)}.clone()")
        elif node.op == "constant":
            device, values = json.loads(node.path)
            dtype = TORCH_DTYPES.get(node.dtype, f"torch.{node.dtype}")
            made = f"torch.tensor({literal(values)}, dtype={dtype}, device={device!r})"
            self.body.append(f"{self._name(node.name)} = {made}.reshape({literal(node.shape)})")
        else:
            given = (*node.args, *(p.value for p in node.at if p.value))
            args = [self.names[a] if isinstance(a, str) else literal(a) for a in given]
            sources = [self.nodes[s] for s in node.sources]
            self.body.append(f"{self._name(node.name)} = {expression(node, sources, args, self._device())}")

    def _emit_site(self, pattern: Pattern, site: Match) -> None:
        self.used[pattern.id] = None
        operands = [self._operand(bind, spec.shape)
                    for bind, spec in zip(site.operands, pattern.program.operands, strict=True)]  # fmt: skip
        names = [self._name(b.node) for b in site.outputs]
        left = ", ".join(names) + ("," if len(names) == 1 else "")
        self.body.append(f"# {pattern.title}")
        self.body.append(f"{left} = {pattern.id}.run({', '.join(operands)})")
        for bind, spec, name in zip(site.outputs, pattern.program.outputs, names, strict=True):
            view = viewed(name, spec.shape, bind, self.nodes[bind.node].shape)
            if view != name:
                self.body.append(f"{name} = {view}")

    def _emit_placed(self, placed: Placed) -> None:
        self.used[placed.name] = None
        takes = ", ".join(self.names[name] for name in placed.takes)
        names = [self._name(name) for name in placed.gives]
        self.body.append(f"# {placed.title}")
        self.body.append(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {placed.name}.run({takes})")

    def _operand(self, bind: Bind, shape: tuple[int, ...]) -> str:
        return viewed(self.names[bind.node], self.nodes[bind.node].shape, bind, shape)

    def _name(self, node: str) -> str:
        """The variable of a value: its operator's name in the graph where it is the one result."""
        call = self.calls.get(self.nodes[node].origin)
        name = call.name if call is not None and call.single and call.results == (node,) else node
        if keyword.iskeyword(name) or name in _TAKEN or name in self.parameters:
            name += "_"
        self.names[node] = name
        return name

    def _device(self) -> str:
        first = next((n for n in self.graph.nodes if n.op == "input"), None)
        return f"{self.names[first.name]}.device" if first is not None else repr(self.target)


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
