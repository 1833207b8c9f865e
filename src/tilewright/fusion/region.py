"""A GrownRegion: a set of graph nodes laid out over one common domain, so that one Program can compute them all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tilewright.ir.bands import Bands, Needed
from tilewright.ir.graph import VIEWS, Graph, Node
from tilewright.ir.program import DTYPE_BYTES, POINTWISE, RANKED, REDUCTIONS, SCANS

from .axes import Axis, Dims, Misaligned, broadcast, flat, fresh, leaves, unify

# Elements of a window along its last dimension from which on they are read side by side, not window beside window.
LONG_WINDOW = 16


class Flow:
    """Who reads whom in a graph, views left out: a view's readers read its root. What nobody needs reads nothing."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = {n.name: n for n in graph.nodes}
        self.position = {n.name: i for i, n in enumerate(graph.nodes)}
        self.calls = {c.name: c for c in graph.calls}
        self.bands = Bands(self.nodes)
        self.kept = {self.root(name) for name in (*graph.outputs, *(u.value for u in graph.updates))}
        called = {s for n in graph.nodes if n.op == "call" for s in self.calls[n.origin].sources}
        self.read = Needed(self.nodes, {*graph.outputs, *(u.value for u in graph.updates), *called})
        self.laid = {self.root(name) for name in (*graph.outputs, *called)}  # others see how these lie in memory
        self.live = self._live()
        self.readers: dict[str, list[str]] = {n.name: [] for n in graph.nodes}
        for node in graph.nodes:
            for source in self.roots(node) if node.name in self.live else ():
                self.readers[source].append(node.name)

    def _live(self) -> frozenset[str]:
        """What is read on the way to what is kept, where kernels do all that they can."""
        ordered = {root for c in self.graph.calls if c.ordered for root in map(self.root, c.sources)}
        found: set[str] = set()
        todo = [*self.kept, *ordered]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.roots(self.nodes[name])
        return frozenset(found)

    def fusable(self, name: str) -> bool:
        """Whether a kernel can compute this value. Positions (`index`) are made by whoever needs them."""
        node = self.nodes[name]
        known = (node.op in POINTWISE and node.op != "index") or node.op in REDUCTIONS or node.op in SCANS
        known = (known or node.op == "load") and name in self.live
        values = (node, *(self.nodes[s] for s in node.sources))
        return known and all(v.dtype in DTYPE_BYTES and 0 not in v.shape for v in values)

    def root(self, name: str) -> str:
        """The value of which this is a view, itself where it is none."""
        while self.nodes[name].op in VIEWS:
            name = self.nodes[name].sources[0]
        return name

    def roots(self, node: Node) -> tuple[str, ...]:
        """What a node that is no view reads; a result of a call reads what the call reads."""
        if node.op in VIEWS:
            return ()
        sources = self.calls[node.origin].sources if node.op == "call" else node.sources
        return tuple(dict.fromkeys(self.root(s) for s in sources))

    def loaded(self, name: str) -> int:
        """Bytes that come from memory where this value is read."""
        return 0 if self.nodes[name].op == "index" else self.nodes[name].bytes

    def needed(self, name: str, inside: Collection[str]) -> bool:
        """Whether somebody outside reads this value."""
        return name in self.kept or any(reader not in inside for reader in self.readers[name])


@dataclass(slots=True)
class Read:
    """A value from outside: its root, and the root's own dimensions as this reader sees them."""

    root: str
    dims: Dims


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownRegion:
    """Nodes in graph order over a domain of leaf axes. `reach` holds the leaves along which a value truly varies:
    fewer than its shape has where it was only expanded."""

    names: tuple[str, ...]
    domain: tuple[Axis, ...]
    reduced: frozenset[Axis]
    outputs: tuple[str, ...]
    dims: Mapping[str, Dims]  # of the nodes inside
    ranks: Mapping[str, Axis]  # of those with several values a row: the axis along which they lie, outside the domain
    reads: Mapping[str, Read]  # by the name of the argument, a view or a root
    loads: Mapping[str, str]  # of the loads inside: the root of what they read
    reach: Mapping[str, frozenset[Axis]]
    levels: Mapping[str, int] = field(default_factory=dict)

    @property
    def roots(self) -> frozenset[str]:
        """The values that are read."""
        return frozenset((*(r.root for r in self.reads.values()), *self.loads.values()))

    @property
    def rows(self) -> int:
        return prod(a.size for a in self.domain if a not in self.reduced)

    @property
    def elements(self) -> int:
        return prod(a.size for a in self.domain)


class _Layout:
    """Gives every value of a set of nodes its axes."""

    def __init__(self, flow: Flow, names: Sequence[str], cuts: frozenset[str]) -> None:
        self.flow, self.names, self.inside, self.cuts = flow, names, frozenset(names), cuts
        self.dims: dict[str, Dims] = {}
        self.reads: dict[str, Read] = {}
        self.reductions: dict[str, list[Axis]] = {}
        self.scans: dict[str, list[Axis]] = {}
        self.loads: dict[str, str] = {}
        self.ranks: dict[str, Axis] = {}  # of results with several values a row: the axis along which they lie
        for name in names:
            node = flow.nodes[name]
            if node.op in REDUCTIONS:
                self.dims[name] = self._reduction(node)
            elif node.op == "load":
                self.dims[name] = self._load(node)
            else:
                self.dims[name] = self._scan(node) if node.op in SCANS else self._pointwise(node)

    def seen(self, name: str) -> Dims:
        """The dimensions of an argument. Ranked values are none: the domain lacks the axis along which they lie."""
        if name in self.ranks:
            raise Misaligned
        if name in self.inside:
            return self.dims[name]
        chain: list[Node] = []
        root = name
        while root not in self.inside and root not in self.cuts and self.flow.nodes[root].op in VIEWS:
            chain.append(self.flow.nodes[root])
            root = chain[-1].sources[0]
        if root in self.inside:
            if root in self.ranks:
                raise Misaligned
            dims = self.dims[root]
        else:
            if name not in self.reads:
                self.reads[name] = Read(root, fresh(self.flow.nodes[root].shape))
            dims = self.reads[name].dims
        for view in reversed(chain):
            dims = self._through(view, dims)
        return dims

    def _through(self, view: Node, dims: Dims) -> Dims:
        if view.op == "permute":
            return [dims[d] for d in view.dims]
        if view.op == "expand":
            source = self.flow.nodes[view.sources[0]].shape
            return [dim if size == old else [Axis(size)]
                    for dim, old, size in zip(dims, source, view.shape, strict=True)]  # fmt: skip
        result = fresh(view.shape)
        unify([a for d in dims for a in d], [a for d in result for a in d])
        return result

    def _load(self, node: Node) -> Dims:
        """Axes of its own: only what lies in memory can be read anywhere."""
        self.loads[node.name] = self.flow.root(node.sources[0])
        if self.loads[node.name] in self.inside:
            raise Misaligned
        result = fresh(node.shape)
        for value in node.sources[1:]:
            broadcast(self.seen(value), self.flow.nodes[value].shape, result, node.shape)
        return result

    def _pointwise(self, node: Node) -> Dims:
        if node.op == "inside" and node.sources[0] not in self.inside:
            raise Misaligned
        result = fresh(node.shape)
        for source in node.sources:
            broadcast(self.seen(source), self.flow.nodes[source].shape, result, node.shape)
        return result

    def _reduction(self, node: Node) -> Dims:
        source = self.seen(node.sources[0])
        self.reductions[node.name] = [a for d in node.dims for a in source[d]]
        if node.op in RANKED:
            self.ranks[node.name] = Axis(node.shape[node.dims[0]])
            return [[self.ranks[node.name]] if d in node.dims else dim for d, dim in enumerate(source)]
        return [dim for d, dim in enumerate(source) if d not in node.dims]

    def _scan(self, node: Node) -> Dims:
        result = fresh(node.shape)
        for source in node.sources:
            broadcast(self.seen(source), self.flow.nodes[source].shape, result, node.shape)
        self.scans[node.name] = result[node.dims[0]]
        return result


def lay_out(flow: Flow, names: Iterable[str], outputs: Collection[str] | None = None) -> GrownRegion | None:
    """The region of these nodes, or None where no single domain serves them. Where a view stands in the way, the value
    that it gives is read instead of its root. `outputs` are what it must write (None: what others read)."""
    ordered = sorted(names, key=flow.position.__getitem__)
    for cuts in (frozenset[str](), _outer_views(flow, ordered)):
        try:
            region = _region(flow, _Layout(flow, ordered, cuts), outputs)
        except Misaligned:
            continue
        if region is not None:
            return region
    return None


def _outer_views(flow: Flow, names: Sequence[str]) -> frozenset[str]:
    inside = frozenset(names)
    arguments = {s for n in names for s in flow.nodes[n].sources}
    return frozenset(a for a in arguments if flow.nodes[a].op in VIEWS and flow.root(a) not in inside)


def _region(flow: Flow, layout: _Layout, wanted: Collection[str] | None) -> GrownRegion | None:
    reduced = _reduced(layout)
    if reduced is None:
        return None
    reach = _reach(flow, layout, reduced)
    whole = frozenset().union(*reach.values(), reduced)
    roots = [flat(r.dims) for r in layout.reads.values()]
    if any(len(set(axes)) != len(axes) for axes in (*roots, *(flat(d) for d in layout.dims.values()))):
        return None  # a diagonal
    outputs = tuple(n for n in layout.names if (flow.needed(n, layout.inside) if wanted is None else n in wanted))
    for name in outputs:
        full = whole - reduced if reduced and not reach[name] & reduced else whole
        axes = set(flat(layout.dims[name])) - set(layout.ranks.values())
        if reach[name] != full or axes != full or (layout.scans and full != whole):
            return None
    if any(_taken(flow, layout, reach, flow.nodes[n]) != whole for n in (*layout.reductions, *layout.scans)):
        return None
    domain = _windows_first(flow, layout, _domain(flow, layout, outputs, whole), reduced)
    if domain is not None:
        domain = _as_torch_lays(flow, layout, outputs, domain)
    if domain is None or not _positions_hold(flow, layout, domain):
        return None
    return GrownRegion(names=tuple(layout.names), domain=domain, reduced=reduced, outputs=outputs, dims=layout.dims,
                  ranks=layout.ranks, reads=layout.reads, loads=layout.loads, reach=reach,
                  levels=_levels(flow, layout))  # fmt: skip


def _reduced(layout: _Layout) -> frozenset[Axis] | None:
    """The axes that all reductions reduce, None where they differ; or the one axis of the only scan, which may have two
    results."""
    if layout.scans:
        axes = frozenset(leaves(next(iter(layout.scans.values()))))
        scans = {(node.op, node.args, node.dims) for node in map(layout.flow.nodes.__getitem__, layout.scans)}
        return axes if len(scans) == 1 and len(axes) == 1 and not layout.reductions else None
    sets = {frozenset(leaves(axes)) for axes in layout.reductions.values()}
    if layout.ranks and any(len(axes) != 1 for axes in sets):
        return None
    return None if len(sets) > 1 else next(iter(sets), frozenset())


def _reach_of(flow: Flow, layout: _Layout, reach: Mapping[str, frozenset[Axis]], name: str) -> frozenset[Axis]:
    if name in layout.reads:
        return frozenset(flat(layout.reads[name].dims))
    return reach[name if name in layout.inside else flow.root(name)]


def _taken(flow: Flow, layout: _Layout, reach: Mapping[str, frozenset[Axis]], node: Node) -> frozenset[Axis]:
    """The axes along which the arguments of a reduction or scan vary."""
    return frozenset[Axis]().union(*(_reach_of(flow, layout, reach, s) for s in node.sources))


def _reach(flow: Flow, layout: _Layout, reduced: frozenset[Axis]) -> dict[str, frozenset[Axis]]:
    reach: dict[str, frozenset[Axis]] = {}
    for name in layout.names:
        node = flow.nodes[name]
        if node.op == "load":
            moving = [a for p in node.at for d, _ in p.steps for a in leaves(layout.dims[name][d])]
            reach[name] = frozenset(moving).union(*(_reach_of(flow, layout, reach, s) for s in node.sources[1:]))
            continue
        taken = _taken(flow, layout, reach, node)
        reach[name] = taken - reduced if node.op in REDUCTIONS else taken
    return reach


def _levels(flow: Flow, layout: _Layout) -> dict[str, int]:
    """How many sweeps must end before a value is known."""
    levels: dict[str, int] = {}
    for name in layout.names:
        node = flow.nodes[name]
        inner = [levels.get(s if s in layout.inside else flow.root(s), 0) for s in node.sources]
        levels[name] = max(inner, default=0) + (node.op in REDUCTIONS)
    return levels


def _domain(flow: Flow, layout: _Layout, outputs: Sequence[str], whole: frozenset[Axis]) -> tuple[Axis, ...] | None:
    """All axes in the order in which most bytes lie, by the values that have them all."""
    votes: dict[tuple[Axis, ...], int] = {}
    written = [(o, layout.dims[o]) for o in outputs if o not in layout.ranks]
    for root, dims in (*((r.root, r.dims) for r in layout.reads.values()), *written):
        order = in_memory(flow.nodes[root], dims)
        if len(order) == len(whole) and flow.loaded(root):
            votes[order] = votes.get(order, 0) + flow.loaded(root)
    if not votes:
        orders = (tuple(flat(layout.dims[n])) for n in layout.names if n not in layout.ranks)
        return next((order for order in orders if frozenset(order) == whole), None)
    return max(votes, key=votes.__getitem__)


def in_memory(node: Node, dims: Dims) -> tuple[Axis, ...]:
    """A value's axes, outermost first, as they lie in memory."""
    return tuple(flat([dims[d] for d in node.order] if node.order else dims))


def _as_torch_lays(
    flow: Flow, layout: _Layout, outputs: Sequence[str], domain: tuple[Axis, ...]
) -> tuple[Axis, ...] | None:
    """The domain in whose order outputs lie as others expect them to; None where no kernel should have them all. A
    reduction's kernel keeps its own order, and leaves it to another to copy its result into a different one."""
    orders = {n: in_memory(flow.nodes[n], layout.dims[n]) for n in outputs if n in flow.laid}
    if layout.reductions or layout.scans:
        copies = [n for n in orders if flow.nodes[n].op == "to" and _same_dtype(flow, n)]
        return None if any(orders[n] != tuple(a for a in domain if a in orders[n]) for n in copies) else domain
    found = set(orders.values())
    return None if len(found) > 1 else next(iter(found), domain)


def _same_dtype(flow: Flow, name: str) -> bool:
    node = flow.nodes[name]
    return flow.nodes[node.sources[0]].dtype == node.dtype


def _windows_first(
    flow: Flow, layout: _Layout, domain: tuple[Axis, ...] | None, reduced: frozenset[Axis]
) -> tuple[Axis, ...] | None:
    """Short windows lie before the innermost of the dimensions that stay, along which neighbours are then computed."""
    windows = any(flow.nodes[name].op == "load" for name in layout.names)
    if not domain or not windows or domain[-1] not in reduced or domain[-1].size >= LONG_WINDOW:
        return domain
    kept = [a for a in domain if a not in reduced]
    return (*kept[:-1], *(a for a in domain if a in reduced), *kept[-1:])


def _positions_hold(flow: Flow, layout: _Layout, domain: Sequence[Axis]) -> bool:
    """Whether argmax and argmin count positions in the domain's order as they do in their argument's."""
    place = {axis: i for i, axis in enumerate(domain)}
    for name, axes in layout.reductions.items():
        places = [place[a] for a in leaves(axes)]
        if flow.nodes[name].op in ("argmax", "argmin") and places != sorted(places):
            return False
    return True
