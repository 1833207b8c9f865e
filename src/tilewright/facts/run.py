"""A Run: one problem, one strategy, one journal; what its first record holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..ir.graph import Graph
from .candidate import Candidate, SourceFile
from .dialogue import ModelChoice
from .discovery import InputStatistics, Part
from .document import Document
from .machine import Machine
from .outcome import Station
from .pattern import Pattern, Recipe
from .problem import OpenSize, Problem, TensorSpec, Work
from .realised import Known
from .segment import Segment
from .space import Point

EDITION = 2  # of the rules by which strategies make their moves; a journal is replayed by those of its own
AGENT = "agent"  # the strategy of a run whose moves an agent makes: a model, or a coding agent from outside
GIVEN = "given"  # that of a run which judges one candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFacts:
    """What was learnt of one case by running the reference once. Cases of equal `fixed` arguments, which are JSON,
    differ in their `open` sizes alone, and the module computes the same throughout the ranges of these."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    work: Work
    graph: Graph | None  # None: the module could not be traced
    trace_failure: str = ""
    # The same with less work, by declared algebra (frontend.rewrite.algebra), or in another layout (fusion.layouts).
    rewritten: Graph | None = None
    algebra: tuple[str, ...] = ()  # what was done for that, in the author's operators
    open: tuple[OpenSize, ...] = ()
    fixed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The patterns found in one case, and why what is left was left."""

    case: int
    patterns: tuple[Pattern, ...]
    unmatched: tuple[str, ...]  # "aten.cumsum.default: no skeleton", one line a node left to torch
    segments: tuple[Segment, ...] = ()  # in training: what is done here, in whose graphs the patterns stand


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How the user wants candidates to be timed: for `budget_s` (four times that where a gain may still hide in the
    noise), against eager, and against torch.compile too where `compiled`, in these `modes`; (): the usual ones."""

    budget_s: float = 6.0
    compiled: bool = True
    modes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a search may use up beside its time; None: as much as it likes."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    device_s: float | None = None  # of building, judging and tuning, on the device that is optimised for
    tries: int | None = None  # candidates judged

    def share(self, fraction: float) -> Limits:
        """Of each limit this part, at least a call or a try."""
        return Limits(
            usd=None if self.usd is None else fraction * self.usd,
            tokens=None if self.tokens is None else max(1, round(fraction * self.tokens)),
            calls=None if self.calls is None else max(1, round(fraction * self.calls)),
            device_s=None if self.device_s is None else fraction * self.device_s,
            tries=None if self.tries is None else max(1, round(fraction * self.tries)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for: the journal's first record, written before anything is run."""

    run: str
    problem: Problem
    strategy: str
    seed: int
    budget_s: float
    sanitize: bool = False  # the winner goes under compute-sanitizer before it is handed over
    timing: Timing = Timing()
    model: ModelChoice | None = None
    limits: Limits = Limits()
    evaluator: str = ""  # who builds, judges, tunes and profiles: "bundle:DIR"; "": this machine
    without: tuple[str, ...] = ()  # parts of the strategy that are switched off, to see what each is worth
    algebra: bool = True  # whether the amount of work may be changed (see frontend.rewrite.algebra)
    racecheck: bool = False  # where the winner goes under compute-sanitizer: under its racecheck, too
    tools: bool = False  # a model may call tools between two submissions

    @property
    def from_outside(self) -> bool:
        """Whether a coding agent makes the moves, through MCP: with a model named, strategy "agent" is a model's."""
        return self.strategy == AGENT and self.model is None


def patterns_by_id(matched: Sequence[Matched]) -> dict[str, Pattern]:
    """In order; of a pattern that stands in several cases, as it is in the first."""
    found: dict[str, Pattern] = {}
    for pattern in (p for m in matched for p in m.patterns):
        found.setdefault(pattern.id, pattern)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchContext:
    """All that a strategy may know: written once, before the first move, so that a replay needs nothing else."""

    run: str
    problem: Problem
    machine: Machine
    strategy: str
    seed: int
    budget_s: float
    cases: tuple[CaseFacts, ...]
    matched: tuple[Matched, ...]
    remembered: Recipe  # winners on this machine with this toolchain, by pattern id: they need no tuning
    sanitize: bool = False
    versions: tuple[tuple[str, str], ...] = ()  # python, torch, dsl, compiler, tilewright, its kernels
    model: str = ""  # whom a strategy may ask; "": nobody
    limits: Limits = Limits()
    start: Candidate | None = None  # where a model is to be asked: what the library alone makes of the module, untuned
    near: tuple[SourceFile, ...] = ()  # where moves are a model's: the heart of skeletons that do this kind of work
    held: tuple[Station, ...] = ()  # for what the device was held to learn this, and how long
    parts: tuple[Part, ...] = ()  # strategy fact: what the main case spends its time in, what can win most first
    spreads: tuple[InputStatistics, ...] = ()  # and what its values looked like
    languages: tuple[
        tuple[str, str], ...
    ] = ()  # that candidates may be written in where they are judged; () before 0.1
    known: tuple[Known, ...] = ()  # and what was realised before of it
    notes: tuple[Document, ...] = ()  # and where a model is to inspect it, what is known of such work
    hinted: Recipe = ()  # winners on this device with another toolchain, or found in noise: tried first, among a few
    without: tuple[str, ...] = ()  # as in the Request
    rewritten: tuple[Matched, ...] = ()  # the patterns of every case as algebra has it; (): it has nothing to do
    libraries: Recipe = ()  # parts of the main case for which there is a library call
    inductor: tuple[Point, ...] = ()  # in which torch.compile may run what is left to torch, the likeliest first
    refusals: tuple[str, ...] = ()  # why libraries realise nothing of the main case, a sentence each
    edition: int = 1  # of the strategies' rules: EDITION of the version that wrote this
    hardware: tuple[str, ...] = ()  # what whoever writes kernels must know of the processor
    tools: tuple[str, ...] = ()  # that a model may call between two submissions; () where it may call none
    lessons: tuple[str, ...] = ()  # of earlier runs on such work, with effects
    opened_s: float = 0.0  # of the budget, that it took to learn this; 0.0: not counted, and nothing is judged early

    @property
    def from_outside(self) -> bool:
        """As of the Request."""
        return self.strategy == AGENT and not self.model

    @property
    def with_algebra(self) -> SearchContext:
        """The same problem as algebra has it, in the place of the module's own graphs."""
        cases = tuple(replace(case, graph=case.rewritten or case.graph) for case in self.cases)
        return replace(self, cases=cases, matched=self.rewritten, rewritten=(), libraries=())  # whose graph is another

    def behind(self, recipe: Recipe) -> SearchContext:
        """Of the two the one of whose patterns a recipe is made."""
        ids = {p.id for m in self.rewritten for p in m.patterns}
        return self.with_algebra if any(choice.pattern in ids for choice in recipe) else self

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Of both, all cases'."""
        return tuple(p for m in (*self.matched, *self.rewritten) for p in m.patterns)
