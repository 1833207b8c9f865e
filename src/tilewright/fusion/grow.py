"""Growing regions: which nodes go into one kernel. Greedy, the largest saved traffic first; every step stays legal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import pairwise
from math import prod

from tilewright.ir.graph import Node
from tilewright.ir.program import REDUCTIONS, SCANS, Program

from .program import write
from .region import Flow, GrownRegion, lay_out

# Judgement, not law. A kernel with more than this compiles slowly and keeps too much in registers.
MOST_STATEMENTS = 96
MOST_TENSORS = 24
# Statements on values smaller than the domain are computed again for every element; a memory-bound kernel has room for
# about this many before they show.
MOST_REPEATED = 16
# A value made by no more than this many statements is computed twice rather than written and read.
CHEAP_STATEMENTS = 6
# Columns of more rows than this don't stay on a multiprocessor: what is written beside their sums is read twice.
MOST_HELD_ROWS = 256
# What memory could move while a kernel is launched; between the few 100 KB of a CPU and the 20 MB of a large GPU.
LAUNCH_BYTES = 1 << 20


def grown(flow: Flow, unsupported: Callable[[Program], str | None]) -> Growth:
    """The best of growths that differ in how they break ties, and, where values are reduced both along rows and across
    them, in whether what is common to the two goes with the rows."""
    across = frozenset(n.name for n in flow.graph.nodes if n.op in REDUCTIONS and _across(flow, n))
    along = any(n.op in REDUCTIONS and n.name not in across for n in flow.graph.nodes)
    late = (frozenset[str](), across) if across and along else (frozenset[str](),)
    growths = [Growth(flow, unsupported, last_first=way, late=last) for last in late for way in (False, True)]
    for growth in growths:
        growth.run()
    return min(growths, key=Growth.cost_bytes)


def _across(flow: Flow, node: Node) -> bool:
    """Whether a reduction leaves the innermost dimension."""
    return len(flow.nodes[node.sources[0]].shape) - 1 not in node.dims


class Growth:
    """The partition under construction: every fusable node in one region, clones of cheap producers aside."""

    def __init__(
        self, flow: Flow, unsupported: Callable[[Program], str | None], *, last_first: bool, late: frozenset[str]
    ) -> None:
        self.flow = flow
        self.last_first = last_first
        self.late = late  # nodes that join what they read after all others have
        self.unsupported = unsupported
        self.regions: dict[int, GrownRegion] = {}
        self.home: dict[str, int] = {}
        self.refused: dict[str, str] = {}  # nodes that stand in no region, and why
        self._failed: set[frozenset[str]] = set()  # sets that no kernel could hold, whatever else merges

    def run(self) -> None:
        self._grow()
        _repeat_cheap(self)
        self._refuse()

    def found(self) -> list[GrownRegion]:
        """Regions in graph order."""
        return sorted(self.regions.values(), key=lambda r: self.flow.position[r.names[0]])

    def cost_bytes(self) -> int:
        """Traffic of all regions, and for each launch as much as it could have moved in its time."""
        return sum(LAUNCH_BYTES + self.traffic(r) for r in self.regions.values())

    def _grow(self) -> None:
        """Put each node into a region of its own, and then merge what can be."""
        for node in self.flow.graph.nodes:
            if self.flow.fusable(node.name) and node.op != "inside":
                insides = [r for r in self.flow.readers[node.name] if self.flow.nodes[r].op == "inside"]
                self._seed(self.flow.position[node.name], node.name, *insides)
        self._merge_all(_twins(self))
        self._merge_all(_edges(self, same_call=True))
        for _ in range(3):
            if not self._merge_all(_edges(self, same_call=False)) | self._merge_all(_siblings(self)):
                break

    def _seed(self, number: int, *names: str) -> None:
        region = lay_out(self.flow, names)
        if region is None:
            self.refused.update(dict.fromkeys(names, "no common index space"))
            return
        self.regions[number] = region
        self.home.update(dict.fromkeys(names, number))

    def _refuse(self) -> None:
        """Let go of what no skeleton takes; single nodes were not asked about while they could still join others."""
        for number, region in list(self.regions.items()):
            why = self.unsupported(write(self.flow, region)[0])
            if why is not None:
                self.refused.update(dict.fromkeys(region.names, why))
                del self.regions[number]

    # --- merging -------------------------------------------------------------------------------------------------

    def traffic(self, region: GrownRegion) -> int:
        return sum(self.flow.loaded(n) for n in (*region.roots, *region.outputs))

    def _merge_all(self, edges: Iterable[tuple[str, str]]) -> bool:
        merged = [self._merge(a, b) for a, b in edges]
        return any(merged)

    def _merge(self, one: str, other: str) -> bool:
        first, second = self.home[one], self.home[other]
        if first == second:
            return False
        names = frozenset(self.regions[first].names) | frozenset(self.regions[second].names)
        if names in self._failed or self._makes_cycle(names):
            return False
        region = self.accepted(names)
        if region is None:
            self._failed.add(names)
            return False
        del self.regions[second]
        self.regions[first] = region
        self.home.update(dict.fromkeys(region.names, first))
        return True

    def _makes_cycle(self, names: frozenset[str]) -> bool:
        """Whether a way leads out of these nodes and back into them; to enter a region is to reach all of it."""
        todo = [reader for n in names for reader in self.flow.readers[n] if reader not in names]
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name in names:
                return True
            if name in seen:
                continue
            unit = self.regions[self.home[name]].names if name in self.home else (name,)
            seen.update(unit)
            todo += [reader for n in unit for reader in self.flow.readers[n]]
        return False

    def accepted(self, names: Iterable[str], outputs: Collection[str] | None = None) -> GrownRegion | None:
        region = lay_out(self.flow, names, outputs)
        if region is None or not worthwhile(self.flow, region):
            return None
        reads = any(self.flow.loaded(root) for root in region.roots)  # what reads nothing may yet join what does
        return None if reads and self.unsupported(write(self.flow, region)[0]) else region

    # --- computing cheap things twice ----------------------------------------------------------------------------


def _twins(growth: Growth) -> list[tuple[str, str]]:
    """The two results of one reduction or scan."""
    nodes = [growth.flow.nodes[name] for name in growth.home]
    several = [n for n in nodes if n.op in REDUCTIONS or n.op in SCANS]
    first = {(n.op, n.args, n.dims): n.name for n in several if n.item == 0}
    return [(first[key], n.name) for n in nodes if n.item and (key := (n.op, n.args, n.dims)) in first]


def _edges(growth: Growth, *, same_call: bool) -> list[tuple[str, str]]:
    """Producer and reader, both in regions: the largest values first, equal ones in the graph's order or against
    it. So the little that is done with a row's statistics joins those who made them, or those who use them."""
    nodes = growth.flow.nodes
    found = [(p, c) for p in growth.home for c in growth.flow.readers[p] if c in growth.home]
    if same_call:
        return [(p, c) for p, c in found if nodes[p].origin == nodes[c].origin and c not in growth.late]
    way = -1 if growth.last_first else 1
    return sorted(
        found, key=lambda edge: (edge[1] in growth.late, -nodes[edge[0]].bytes, way * growth.flow.position[edge[0]])
    )


def _siblings(growth: Growth) -> list[tuple[str, str]]:
    """Readers of one value that, with all else that both read, is large for them: together they read it once."""
    found = []
    for name, readers in growth.flow.readers.items():
        inside = [r for r in readers if r in growth.home]
        for pair in pairwise(inside):
            one, other = (growth.regions[growth.home[r]] for r in pair)
            size = sum(growth.flow.loaded(root) for root in {name} | ({*one.roots} & {*other.roots}))
            if size * 4 >= growth.traffic(one) + growth.traffic(other):
                found.append((size, *pair))
    return [(a, b) for _, a, b in sorted(found, key=lambda s: -s[0])]


def _repeat_cheap(growth: Growth) -> None:
    """Give other regions their own copy of a cheap producer, so that its value needn't go through memory."""
    for number in sorted(growth.regions, key=lambda i: -growth.flow.position[growth.regions[i].names[0]]):
        for output in reversed(growth.regions[number].outputs):
            readers = _reading_regions(growth, number, output)
            copy = _cheap(growth, growth.regions[number], output) if readers else None
            if copy is not None:
                _repeat(growth, copy, readers)
        _trim(growth, number)


def _repeat(growth: Growth, copy: set[str], readers: set[int]) -> None:
    wider = {i: growth.accepted({*growth.regions[i].names, *copy}, growth.regions[i].outputs) for i in readers}
    if all(wider.values()):
        growth.regions.update({i: region for i, region in wider.items() if region is not None})


def _reading_regions(growth: Growth, number: int, output: str) -> set[int]:
    """The other regions that read this value; none where somebody else needs it in memory."""
    outside = [r for r in growth.flow.readers[output] if r not in growth.regions[number].names]
    if output in growth.flow.kept or any(r not in growth.home for r in outside):
        return set()
    return {i for i, r in growth.regions.items() if i != number and set(r.names) & set(outside)}


def _cheap(growth: Growth, region: GrownRegion, output: str) -> set[str] | None:
    """The statements that make this value, if they are few and read no more than it holds."""
    found: set[str] = set()
    roots: set[str] = set()
    loaded = 0
    todo = [output]
    while todo:
        name = todo.pop()
        if name not in region.names or (name != output and name in region.outputs):
            roots.add(name)
        elif name not in found and growth.flow.nodes[name].op == "load":
            found.add(name)
            loaded += growth.flow.nodes[name].bytes
        elif name not in found:
            if growth.flow.nodes[name].op in REDUCTIONS or growth.flow.nodes[name].op in SCANS:
                return None
            found.add(name)
            todo += [growth.flow.root(s) for s in growth.flow.nodes[name].sources]
    read = loaded + sum(growth.flow.loaded(r) for r in roots)
    return found if len(found) <= CHEAP_STATEMENTS and read <= 1.02 * growth.flow.nodes[output].bytes else None


def _trim(growth: Growth, number: int) -> None:
    """Drop what nobody needs from a region any more, and the region with it if that is all."""
    needed = {o for o in growth.regions[number].outputs if _read_from_memory(growth, number, o)}
    live: set[str] = set()
    todo = list(needed)
    names = set(growth.regions[number].names)
    while todo:
        name = todo.pop()
        if name in names and name not in live:
            live.add(name)
            todo += [growth.flow.root(s) for s in growth.flow.nodes[name].sources]
    if live == names and len(needed) == len(growth.regions[number].outputs):
        return
    region = lay_out(growth.flow, live, needed) if live else None
    if region is not None:
        growth.regions[number] = region
    elif not live:
        del growth.regions[number]


def _read_from_memory(growth: Growth, number: int, output: str) -> bool:
    if output in growth.flow.kept:
        return True
    for reader in growth.flow.readers[output]:
        homes = [r for i, r in growth.regions.items() if reader in r.names]
        if not homes or any(output not in r.names for r in homes):
            return True
    return False


def worthwhile(flow: Flow, region: GrownRegion) -> bool:
    """Whether a kernel of this region is likely to beat its parts."""
    tensors = sum(1 for r in region.roots if flow.loaded(r)) + len(region.outputs)
    if len(region.names) > MOST_STATEMENTS or tensors > MOST_TENSORS or _passes_twice(flow, region):
        return False
    return _repeated(flow, region) <= MOST_REPEATED


def _passes_twice(flow: Flow, region: GrownRegion) -> bool:
    """Whether all that is written beside sums of long columns is known without them: as it passes, another kernel sums
    it (see `sums`), where a column's would come back to write it."""
    along = not region.reduced or region.domain[-1] in region.reduced
    if along or prod(axis.size for axis in region.reduced) <= MOST_HELD_ROWS:
        return False
    sums = all(flow.nodes[n].op == "sum" for n in region.names if flow.nodes[n].op in REDUCTIONS)
    written = [n for n in region.outputs if region.reach[n] & region.reduced]
    return sums and bool(written) and not any(region.levels[n] for n in written)


def _repeated(flow: Flow, region: GrownRegion) -> int:
    """Statements on values smaller than the domain that are no row values."""
    whole = len(region.domain)
    partial = [n for n in region.names if len(region.reach[n]) < whole and flow.nodes[n].op not in REDUCTIONS]
    return sum(1 for n in partial if not region.reduced or region.reach[n] & region.reduced)
