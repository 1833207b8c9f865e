"""A Pattern: a subgraph that a skeleton realises; a Match: all that was found in a module, case by case."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..ir.access import ALL_DIAGONALS, each_of
from ..ir.graph import Graph
from ..ir.matrices import matrices_of
from ..ir.program import AttentionBackwardOp, AttentionOp, Contraction, Load, Program, multiplies
from ..ir.recurrence import RecurrenceOp
from .candidate import Candidate
from .space import Point, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """How a node's value and an aligned tensor of a Program are views of each other.

    An operand is `value.reshape(split).permute(order).reshape(aligned shape)`, which never copies (`split` only divides
    dimensions); with a `part`, that one of the first dimension as it is permuted. An output's value is
    `result.reshape(split).permute(order).reshape(shape of the node)`."""

    node: str
    split: tuple[int, ...]
    order: tuple[int, ...]
    part: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of a graph by itself, by the names of its nodes: what is computed there, what of the rest that takes, and
    what the rest takes of it."""

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subproblem:
    """A part of the main case that is solved as a Problem of its own: a pattern's (`name` is its id), one that a
    library call makes, or one that a model proposed."""

    name: str
    title: str
    region: Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One place where a pattern stands in the graph; `operands` and `outputs` in the Program's order.

    `spared`: values that other patterns would write for one another, and that nobody needs where this one stands."""

    nodes: tuple[str, ...]  # the graph nodes that are computed here
    operands: tuple[Bind, ...]
    outputs: tuple[Bind, ...]
    spared: tuple[str, ...] = ()

    @property
    def region(self) -> Region:
        inputs = dict.fromkeys(b.node for b in self.operands)
        outputs = dict.fromkeys(b.node for b in self.outputs)
        return Region(nodes=self.nodes, inputs=tuple(inputs), outputs=tuple(outputs))


# Kinds of patterns that do what others would do by themselves; those stay, for a candidate without them.
TAKES_OTHERS = ("product", "convolution", "attention", "attention_backward", "row_column_reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One fused computation found in the module, at one match or more that need the same Program.

    `id` is its name in the candidate too (`fused_0`, ...). Equal programs in several cases share one id."""

    id: str
    title: str  # what was fused, readable: "scale -> mask -> softmax"
    # "pointwise", "row_reduce", "column_reduce", "row_column_reduce", "whole_reduce", "scan", "product", "convolution",
    # "attention", "attention_backward", "recurrence"
    kind: str
    nodes: tuple[str, ...]  # names of the graph nodes it replaces, over all matches
    program: Program
    space: Space
    matches: tuple[Match, ...] = ()

    @property
    def same(self) -> str:
        """Equal for programs that differ in names and numbers alone."""
        return self._digest(lambda shape: shape)

    @property
    def shape_class(self) -> str:
        """The key under which winning points are remembered. Equal for programs that differ in names and numbers, and
        in how many rows they have where these are many: of the same nearest power of two, and as even."""
        program = self.program
        if program.loads or multiplies(program):
            return self.same
        kept = {d for d in range(len(program.domain)) if d not in program.reduced}
        return self._digest(lambda shape: tuple(_many(n) if d in kept else n for d, n in enumerate(shape)))

    @property
    def batch_class(self) -> str:
        """The key of winners that are hints for other batches: equal for programs that differ, beside names and
        numbers, in the size of the first dimension alone. "" where that is reduced."""
        program = self.program
        if 0 in program.reduced or not program.domain:
            return ""
        rows = program.domain[:1]
        return ANY_BATCH + self._digest(lambda shape: ("rows", *shape[1:]) if shape[:1] == rows else shape)

    def _digest(self, told: Callable[[tuple[int, ...]], object]) -> str:
        program = self.program
        text = repr((self.kind, told(program.domain), program.reduced,
                     [(o.dtype, told(o.shape), *([o.order] if o.order else []), *([each_of(o.at)] if o.at else []))
                      for o in program.operands],
                     [_told(s, program) for s in program.body],
                     [(o.dtype, told(o.shape)) for o in program.outputs]))  # fmt: skip
        return hashlib.sha256(text.encode()).hexdigest()[:16]


ANY_BATCH = "any batch "  # how keys begin of winners that are kept for other batches
_MANY = 1024  # rows: enough for each multiprocessor to have several, so that a few more change little
_LANES = 16  # neighbours that one access may take


def _many(count: int) -> object:
    """What counts of a number of rows: the number where they are few."""
    return count if count < _MANY else (round(math.log2(count)), math.gcd(count, _LANES))


def _told(item: object, program: Program) -> object:
    """What a shape class says of a part of a program. The words for products of matrices are those under which winners
    are remembered."""
    if isinstance(item, Load):
        return item.at, item.fill
    if isinstance(item, AttentionOp):
        scores = [i.op for i in item.scores.body], [(o.dtype, o.shape) for o in item.scores.operands]
        at = [access.at for access in (item.query, item.key, item.value)]
        more = (*("sink",) * bool(item.sink), *("logsum",) * bool(item.logsum))
        return (item.op, item.keys, item.depth, at, scores, item.softmax, item.empty_is_zero, item.spares, *more)
    if isinstance(item, AttentionBackwardOp):
        scores = [i.op for i in item.map.body], [(o.dtype, o.shape) for o in item.map.operands]
        at = [access.at for access in (item.query, item.key, item.value, item.upstream)]
        return item.op, item.keys, item.depth, at, scores, item.spares
    if isinstance(item, RecurrenceOp):
        return item.op, item.cell, item.layers, item.directions, item.hidden, item.bias
    if isinstance(item, Contraction):
        said = "product, rounded" if item.allow_tf32 else item.op
        of = matrices_of(program, item)
        if of is None:
            said += f", {item.over}, {[(x.at, x.padded, x.within) for x in (item.left, item.right)]}, {item.within}"
        else:
            said += f", {of.zeros}" if of.zeros != (ALL_DIAGONALS, ALL_DIAGONALS) else ""
            said += f", wanted {of.wanted}" if of.wanted != ALL_DIAGONALS else ""
            said += f", each {of.each}" if of.each != (1, 1) else ""
        left, prologues = item.left.operand, item.prologues
        before = [(p.factor == left, [_told(i, p.program) for i in p.program.body]) for p in prologues]
        return (said, *before) if before else said
    return getattr(item, "op")  # noqa: B009


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A realisation that is no skeleton's: a candidate for the problem of a Subproblem, which stands at these regions
    of the main case; all take and give tensors of the same shapes. `points`: the settings that its `configure` takes,
    the likeliest winner first."""

    title: str
    candidate: Candidate
    regions: tuple[Region, ...]
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A pattern and the knob settings with which to realise it; with `written` no skeleton does, and `pattern` may be
    a Subproblem's name."""

    pattern: str  # Pattern.id
    point: Point
    written: Written | None = None


Recipe = tuple[Choice, ...]  # the patterns to realise; every other node stays torch
INDUCTOR = "inductor"  # the choice of this name has torch.compile run what is left to torch; its knob is `mode`
# A mode that torch.compile does not have: eager mode runs what is left to torch, and a CUDA graph replays the whole.
CUDA_GRAPH = "cuda-graph"
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")  # of torch.compile


def inductor_mode(recipe: Recipe) -> str:
    """The mode in which torch.compile runs what is left to torch; "" where eager mode does."""
    return next((str(dict(choice.point)["mode"]) for choice in recipe if choice.pattern == INDUCTOR), "")


def without_inductor(recipe: Recipe) -> Recipe:
    """The patterns that a recipe realises; what is left to torch is eager mode's."""
    return tuple(choice for choice in recipe if choice.pattern != INDUCTOR)


def subproblem_of(pattern: Pattern) -> Subproblem:
    """The pattern, at its first match."""
    return Subproblem(name=pattern.id, title=pattern.title, region=pattern.matches[0].region)


def alike(graph: Graph | None, pattern: Pattern) -> tuple[Region, ...]:
    """The pattern's regions at which tensors of the same shapes enter and leave as at the first."""
    shapes = {n.name: (n.shape, n.dtype, n.order) for n in graph.nodes} if graph is not None else {}
    regions = [site.region for site in pattern.matches]

    def looks(region: Region) -> list[tuple[object, ...]]:
        return [shapes.get(name, ()) for name in (*region.inputs, *region.outputs)]

    return tuple(r for r in regions if looks(r) == looks(regions[0]))


def subproblems_written(recipe: Recipe) -> tuple[Subproblem, ...]:
    """What is written of a recipe, each at its first region."""
    return tuple(
        Subproblem(name=c.pattern, title=c.written.title, region=c.written.regions[0])
        for c in recipe
        if c.written is not None
    )


def without_idle(cases: Sequence[Sequence[Pattern]], recipe: Recipe) -> Recipe:
    """The recipe without what it realises nowhere: patterns all of whose results chosen ones that take others give, or
    spare; of two ways to have the same, the later one stays. `cases`: the patterns of each case."""
    chosen = {choice.pattern for choice in recipe}
    busy = {p.id for patterns in cases for p in patterns if not _results([p])}
    for patterns in cases:
        takers = {p.id: p for p in patterns if p.kind in TAKES_OTHERS and p.id in chosen}
        for p in patterns:
            taken = _results([t for t in takers.values() if t is not p])
            if _results([p]) <= taken:
                takers.pop(p.id, None)
            else:
                busy.add(p.id)
    busy.add(INDUCTOR)
    return tuple(choice for choice in recipe if choice.written is not None or choice.pattern in busy)


def _results(patterns: Sequence[Pattern]) -> set[str]:
    matches = [site for p in patterns for site in p.matches]
    return {bind.node for site in matches for bind in site.outputs} | {name for site in matches for name in site.spared}
