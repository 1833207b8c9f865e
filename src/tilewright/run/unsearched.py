"""A candidate for a graph without a search: what won before, and else what is likeliest."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.devices import device_of
from ..facts.machine import Machine
from ..facts.pattern import INDUCTOR, Choice, Pattern, Recipe, without_idle
from ..facts.problem import Work
from ..facts.run import CaseFacts, Matched
from ..facts.space import point
from ..facts.version import VERSION
from ..ir.graph import Graph
from ..realise.case_code import case_code
from ..realise.compose import compose
from ..realise.library.table import found
from ..realise.table import realisers
from ..search.tune import memory
from .matching import found_patterns
from .winners import known_winners

_NO_WORK = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")  # nobody asks for it here
_SDPA = "scaled_dot_product_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsearched:
    """What is realised of a graph of one case; an empty recipe where nothing of ours fits."""

    case: CaseFacts
    matched: Matched
    recipe: Recipe
    machine: Machine

    @property
    def graph(self) -> Graph:
        assert self.case.graph is not None
        return self.case.graph

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Those of the recipe."""
        chosen = {choice.pattern for choice in self.recipe}
        return tuple(p for p in self.matched.patterns if p.id in chosen)

    @property
    def any_rows(self) -> bool:
        """Whether all of it takes any number of rows of what the graph leaves open."""
        make = realisers(device_of(self.machine))
        code = case_code(self.graph, self.patterns, target=self.machine.target, any_rows=make.any_rows)
        return bool(code.free) and all(choice.written is None for choice in self.recipe)

    def title(self, name: str) -> str:
        """What a reader calls a choice."""
        titles = {p.id: p.title for p in self.patterns}
        return titles.get(name) or next(c.written.title for c in self.recipe if c.written and c.pattern == name)

    def without(self, names: Collection[str]) -> Unsearched:
        """The same, with these left to torch."""
        return replace(self, recipe=tuple(c for c in self.recipe if c.pattern not in names))

    def candidate(self) -> Candidate:
        """Its model.py has the case as `ModelNew._case_0`, each kernel and library call an operator of torch.library
        under torch.compile. Raises ValueError where its parts wait for one another."""
        opaque = Choice(pattern=INDUCTOR, point=point(mode="default"))
        recipe = (*self.recipe, opaque)
        return compose("", (self.case,), (self.matched,), recipe, device=device_of(self.machine))


def unsearched(
    graph: Graph,
    machine: Machine,
    *,
    winners: Path,
    shipped: Path = memory.SHIPPED,
    allow_tf32: bool = False,
    ranked: bool = False,
) -> Unsearched:
    """Library calls first, then each pattern at the point that won on this machine or with another toolchain, and fp32
    products on a GPU, which tensor cores make several times faster than torch's library does. `ranked`: every other
    pattern too, at the point that its kernels' model ranks first, but for single pointwise calls and products that
    torch's library makes with tensor cores. Where the graph leaves rows open, all takes
    any number of them. `allow_tf32`: whether torch multiplies fp32 so. Ids hold a digest of the graph: Inductor keeps
    what it compiles by the names of operators, from process to process."""
    digest = hashlib.sha256(f"{VERSION} {machine.target} {machine.architecture} {graph!r}".encode()).hexdigest()
    first = int(digest[:12], 16)
    case = CaseFacts(inputs=(), outputs=(), work=_NO_WORK, graph=graph)
    (matched,) = found_patterns((case,), device_of(machine), first_id=first, allow_tf32=allow_tf32)
    calls = () if graph.free else _libraries(graph, machine, first)
    taken = {name for c in calls if c.written is not None for region in c.written.regions for name in region.nodes}
    remembered, hinted = known_winners((matched,), machine, winners=winners, shipped=shipped)
    points = {c.pattern: c.point for c in (*hinted, *remembered)}
    any_rows = realisers(device_of(machine)).any_rows
    patterns = [
        p for p in matched.patterns
        if taken.isdisjoint(p.nodes)
        and (p.id in points or _is_wide_product(p, machine) or (ranked and not _is_bare(p, graph, machine)))
        and (not graph.free or any_rows(p.program))
    ]  # fmt: skip
    ours = tuple(Choice(pattern=p.id, point=points.get(p.id, p.space.points[0])) for p in patterns)
    recipe = (*calls, *without_idle([patterns], ours))
    return Unsearched(case=case, matched=matched, recipe=recipe, machine=machine)


def _is_wide_product(pattern: Pattern, machine: Machine) -> bool:
    product = pattern.program.product
    return machine.target == "cuda" and product is not None and product.dtype == "f32" and not product.allow_tf32


def _is_bare(pattern: Pattern, graph: Graph, machine: Machine) -> bool:
    """Whether it is one call: of a product of a type that tensor cores multiply, or pointwise, which Inductor fuses
    with what lies around it. So is a convolution that was not measured: no model tells ours from cuDNN's."""
    if pattern.kind == "convolution":
        return True
    product = pattern.program.product
    if len({n.origin for n in graph.nodes if n.name in pattern.matches[0].nodes}) > 1:
        return False
    if pattern.kind == "attention":
        return True
    if product is None or product.prologues or machine.target != "cuda":
        return pattern.kind == "pointwise"
    return not _is_wide_product(pattern, machine)


def _libraries(graph: Graph, machine: Machine, first: int) -> Recipe:
    """Of two calls for one part the first; none for what the graph calls itself already."""
    calls = {c.name: c.label for c in graph.calls}
    labels = {n.name: calls.get(n.origin, "") for n in graph.nodes}
    chosen: list[Choice] = []
    taken: set[str] = set()
    for choice in found(graph, device_of(machine)).recipe:
        assert choice.written is not None
        nodes = [name for region in choice.written.regions for name in region.nodes]
        same = ("backend", "default") in choice.point and all(labels[name] == _SDPA for name in nodes)
        if not same and taken.isdisjoint(nodes):
            chosen.append(replace(choice, pattern=f"library_{first}_{len(chosen)}"))
            taken.update(nodes)
    return tuple(chosen)
