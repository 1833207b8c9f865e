"""From a GrownRegion to its Program, with names that don't depend on the graph: equal work gives equal Programs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.access import Position
from tilewright.ir.graph import Node
from tilewright.ir.program import (  # fmt: skip
    RANKED,
    REDUCTIONS,
    SCANS,
    Load,
    Operand,
    Output,
    Program,
    Reduction,
    Scan,
    Statement,
)

from .axes import Axis, Dims, flat, leaves
from .region import Flow, GrownRegion, in_memory

_RESULTS = {**REDUCTIONS, **{op: results for op, (_, results) in SCANS.items()}}


def write(flow: Flow, region: GrownRegion) -> tuple[Program, Match]:
    """The Program of a region, and how its operands and outputs hang together with the graph's values."""
    return _Writer(flow, region).finish()


class _Writer:
    """A Program while it is written; `names` are its names of the graph's values."""

    def __init__(self, flow: Flow, region: GrownRegion) -> None:
        self.flow, self.region = flow, region
        self.place = {axis: i for i, axis in enumerate(region.domain)}
        self.operands: list[Operand] = []
        self.binds: list[Bind] = []
        self.body: list[Statement | Load | Reduction | Scan] = []
        self.names: dict[str, str] = {}  # arguments and nodes, by their names in the graph
        self._known: dict[object, str] = {}  # operands and reductions already written
        self._statements = 0

    def finish(self) -> tuple[Program, Match]:
        names = _order(self.flow, self.region)
        for name in names:
            self._node(self.flow.nodes[name])
        outputs = tuple(self._output(self.flow.nodes[name]) for name in self.region.outputs)
        domain = tuple(a.size for a in self.region.domain) or (1,)
        program = Program(
            domain=domain, reduced=tuple(sorted(self.place[a] for a in self.region.reduced)),
            operands=tuple(self.operands), body=tuple(self.body), outputs=tuple(o for o, _ in outputs),
        )  # fmt: skip
        site = Match(nodes=names, operands=tuple(self.binds), outputs=tuple(b for _, b in outputs))
        return program, site

    def _output(self, node: Node) -> tuple[Output, Bind]:
        axes = flat(self.region.dims[node.name])
        rank = self.region.ranks.get(node.name)
        place = dict(self.place)
        shape = _aligned(self.region, axes)
        if rank is not None:  # it lies where the reduced dimension was
            (reduced,) = self.region.reduced
            place[rank] = place[reduced]
            shape = (*shape[: place[rank]], rank.size, *shape[place[rank] + 1 :])
        ours = sorted(axes, key=place.__getitem__)
        bind = Bind(node=node.name, split=tuple(a.size for a in ours), order=tuple(ours.index(a) for a in axes))
        return Output(name=self.names[node.name], dtype=node.dtype, shape=shape), bind

    def _argument(self, name: str) -> str:
        """The Program's name of an argument: what a node inside gives, or an operand."""
        read = self.region.reads.get(name)
        if read is None:
            return self.names[name if name in self.names else self.flow.root(name)]
        return self._operand(read.root, read.dims)

    def _operand(self, root: str, dims: Dims) -> str:
        axes = flat(dims)
        key = (root, tuple(axes))
        if key not in self._known and self.flow.nodes[root].op == "index":
            self._known[key] = self._index(axes)
        if key not in self._known:
            self._known[key] = f"x{len(self.operands)}"
            ours = sorted(axes, key=self.place.__getitem__)
            order = tuple(axes.index(a) for a in ours)
            self.binds.append(Bind(node=root, split=tuple(a.size for a in axes), order=order))
            shape, lies = _aligned(self.region, axes), _order_of(self, root, dims)
            dtype = self.flow.nodes[root].dtype
            self.operands.append(Operand(name=self._known[key], dtype=dtype, shape=shape, order=lies))
        return self._known[key]

    def _indexed(self, name: str) -> str:
        """The operand that Loads of this value, or of this view of one, read."""
        key = (name, "indexed")
        if key not in self._known:
            self._known[key] = f"x{len(self.operands)}"
            node = self.flow.nodes[name]
            self.binds.append(Bind(node=name, split=node.shape, order=tuple(range(len(node.shape)))))
            self.operands.append(Operand(name=self._known[key], dtype=node.dtype, shape=node.shape, indexed=True))
        return self._known[key]

    def _load(self, node: Node) -> str:
        at = tuple(
            Position(start=p.start, steps=tuple(sorted(_steps(self, node, p))),
                     value=self._argument(p.value) if p.value else "")
            for p in node.at
        )  # fmt: skip
        source, result = self._indexed(node.sources[0]), self._fresh()
        self.body.append(Load(result=result, source=source, at=at, dtype=node.dtype, fill=node.fill))
        return result

    def _fresh(self) -> str:
        self._statements += 1
        return f"v{self._statements - 1}"

    def _state(self, op: str, *args: str | float, dtype: str) -> str:
        result = self._fresh()
        self.body.append(Statement(result=result, op=op, args=args, dtype=dtype))
        return result

    def _node(self, node: Node) -> None:
        if node.op in _RESULTS:
            self.names[node.name] = self._reduced(node)
        elif node.op == "load":
            self.names[node.name] = self._load(node)
        elif node.op == "inside":
            self.names[node.name] = self._state("inside", self._argument(node.sources[0]), dtype="bool")
        else:
            args = tuple(self._argument(a) if isinstance(a, str) else a for a in node.args)
            self.names[node.name] = self._state(node.op, *args, dtype=node.dtype)

    def _index(self, axes: list[Axis]) -> str:
        """The position along a dimension, put together where the domain has it in several."""
        name = self._state("index", self.place[axes[0]], dtype="i64")
        for axis in axes[1:]:
            scaled = self._state("mul", name, axis.size, dtype="i64")
            name = self._state("add", scaled, self._state("index", self.place[axis], dtype="i64"), dtype="i64")
        return name

    def _reduced(self, node: Node) -> str:
        """A result of a reduction or a scan; all of them are written together."""
        args = tuple(self._argument(a) if isinstance(a, str) else a for a in node.args)
        keys = [(node.op, args, item) for item in range(_RESULTS[node.op])]
        if keys[0] not in self._known:
            results = tuple(self._fresh() for _ in keys)
            own, of_source = node.dtype, self.flow.nodes[node.sources[0]].dtype
            if node.op in SCANS:
                (axis,), (*given, reverse, exclusive) = self.region.reduced, args
                dtype = own if node.item == 0 else of_source
                self.body.append(Scan(results=results, op=node.op, args=tuple(given), dim=self.place[axis], dtype=dtype,
                                      reverse=bool(reverse), exclusive=bool(exclusive)))  # fmt: skip
            else:
                count = int(args[1]) if node.op in RANKED else 0
                dtype = of_source if count else own
                self.body.append(Reduction(results=results, op=node.op, arg=str(args[0]), dtype=dtype, count=count))
            self._known.update(zip(keys, results, strict=True))
        return self._known[keys[node.item]]


def _order(flow: Flow, region: GrownRegion) -> tuple[str, ...]:
    """Arguments before what reads them, from the outputs backwards, whatever the order in the graph."""
    order: dict[str, None] = {}
    inside = frozenset(region.names)
    todo = [(name, False) for name in reversed(region.outputs)]
    while todo:
        name, ready = todo.pop()
        if ready:
            order[name] = None
        elif name not in order:
            sources = [flow.root(s) for s in flow.nodes[name].sources]
            todo += [(name, True), *((s, False) for s in reversed(sources) if s in inside)]
    return tuple(order)


def _aligned(region: GrownRegion, axes: Collection[Axis]) -> tuple[int, ...]:
    return tuple(a.size if a in axes else 1 for a in region.domain) or (1,)


def _order_of(writer: _Writer, root: str, dims: Dims) -> tuple[int, ...]:
    """Operand.order."""
    places = [writer.place[axis] for axis in in_memory(writer.flow.nodes[root], dims)]
    if places == sorted(places):
        return ()
    return (*(d for d in range(len(writer.region.domain)) if d not in places), *places)


def _steps(writer: _Writer, node: Node, position: Position) -> Iterator[tuple[int, int]]:
    """Its steps along the domain, which may have a dimension of the node in several."""
    for dim, step in position.steps:
        for axis in reversed(leaves(writer.region.dims[node.name][dim])):
            yield writer.place[axis], step
            step *= axis.size
