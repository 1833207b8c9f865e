"""What a strategy may know of a problem: patterns with their points, winners, what was realised before, notes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..edges.gpu.hardware import hardware
from ..edges.toolchain import languages, versions
from ..facts.candidate import Candidate, SourceFile
from ..facts.document import Document
from ..facts.pattern import Choice, Pattern, Recipe, subproblem_of, subproblems_written
from ..facts.realised import Known
from ..facts.run import AGENT, EDITION, GIVEN, CaseFacts, Matched, Request, SearchContext, patterns_by_id
from ..realise.compose import compose
from ..realise.digests import skeleton_digests
from ..realise.open_cases import stay_apart
from ..realise.written.near import skeletons_near
from ..search.retrieve import Index, packaged
from ..search.retrieve import store as table
from ..search.strategies import WITH_ALGEBRA
from ..search.strategies.category import category, is_depthwise
from .ahead import Objects
from .foresee import foreseen
from .kernels_kept import kept_whole, kernels_kept, takes_kept
from .matching import found_patterns, with_layouts
from .opened import OpenedJudge
from .others import called_libraries, inductor_points
from .places import Places, Say
from .realisations import document_of, doubt_of, is_solved, known_of_module, known_of_subproblems
from .winners import known_winners, narrowed, near_winners

if TYPE_CHECKING:
    from ..judge.discover import LookedInto

_MOST_KNOWN: tuple[tuple[tuple[str, ...], int], ...] = ((("note",), 3), (("rule", "realised"), 2))  # shown to a model
_LEAST_FOR_LAYOUTS_S = 180.0  # two layouts share a budget: of less, neither has enough


def tries_layouts(request: Request) -> bool:
    """Whether a network of convolutions is also tried with other layouts between them."""
    return request.strategy in WITH_ALGEBRA and request.algebra and request.budget_s >= _LEAST_FOR_LAYOUTS_S


class Learning:
    """Of one request, with the judge that it is judged by."""

    def __init__(self, request: Request, opened: OpenedJudge, *, places: Places, say: Say, objects: Objects) -> None:
        self._request, self._problem, self._opened = request, request.problem, opened
        self._places, self._say, self._objects = places, say, objects

    def context(self) -> SearchContext:
        """Opens the judge: the cases' facts come from running the reference once."""
        request, opened, places, say = self._request, self._opened, self._places, self._say
        cases, device, machine = opened.cases, opened.device, opened.machine
        if tries_layouts(request):
            cases = with_layouts(cases, device)
        matched = found_patterns(cases, device, allow_tf32=self._problem.allow_tf32)
        if stay_apart(cases, device.target):
            say("sizes stay those of the cases: what torch is left with follows them by no formula that was found")
        titles = [p.title for p in matched[0].patterns]
        say(f"matched in the main case: {'; '.join(titles) or 'nothing'}")
        rewritten = self._rewritten(cases, matched) if request.strategy in WITH_ALGEBRA else ()
        both = (*matched, *rewritten)
        remembered, hinted = known_winners(both, machine, winners=places.winners, shipped=places.shipped)
        near: Recipe = ()
        if request.strategy != "tune":
            known_ones = (*remembered, *hinted)
            near = near_winners(both, machine, but=known_ones, winners=places.winners, shipped=places.shipped)
        known = {choice.pattern for choice in remembered} if request.strategy != "tune" else set()
        whole = self._known_whole()
        solved = request.strategy == "fact" and is_solved(request, whole)
        if solved or request.strategy == GIVEN:  # nobody tunes them
            known |= {p.id for m in both for p in m.patterns}
        both = foreseen(
            narrowed(both, near) if device.target == "cuda" else both, device, known=known, say=say, time=opened.time,
            folder=places.libraries, objects=self._objects, tuned="tuning" not in request.without,
        )  # fmt: skip
        both = narrowed(both, near)
        matched, rewritten = both[: len(matched)], both[len(matched) :]
        called, refusals = called_libraries(request, cases, matched, device=device, say=say)
        looked, realised = None, whole
        if request.strategy == "fact" and not solved:
            looked, realised = self._looked_into(whole, matched, called)
        if takes_kept(request):
            kept = kernels_kept(self._problem, cases, matched, machine=machine, folder=places.realised)
            called = (*called, *_new(kept, realised))
        return SearchContext(
            run=request.run, problem=self._problem, machine=machine, strategy=request.strategy,
            seed=request.seed, budget_s=request.budget_s, cases=cases, matched=matched, remembered=remembered,
            sanitize=request.sanitize, versions=(*versions(), *skeleton_digests(self._problem.target)),
            languages=languages(self._problem.target), hinted=(*hinted, *near),
            model=request.model.name if request.model else "", limits=request.limits,
            start=self._start(matched, remembered) if request.model else None, near=self._near(),
            without=request.without, edition=EDITION, hardware=hardware(device), rewritten=rewritten,
            parts=looked.discovery.parts if looked else (),
            spreads=looked.spreads if looked else (), known=realised,
            libraries=called if looked or request.strategy != "fact" else (),
            inductor=inductor_points(request, cases[0].graph), refusals=refusals,
            notes=self._notes(looked) if looked and request.model else (), held=opened.held(),
        )  # fmt: skip

    def _known_whole(self) -> tuple[Known, ...]:
        """What was handed over for this very problem before, as far as the strategy takes it."""
        problem, machine, folder = self._problem, self._opened.machine, self._places.realised
        if self._request.strategy == "fact":
            return known_of_module(problem, machine, folder)
        return kept_whole(problem, machine, folder) if takes_kept(self._request) else ()

    def _rewritten(self, given: tuple[CaseFacts, ...], matched: tuple[Matched, ...]) -> tuple[Matched, ...]:
        """The patterns of the cases as declared algebra has them, if it has anything to do."""
        steps = [step for case in given for step in case.algebra]
        if not steps:
            return ()
        cases = tuple(replace(case, graph=case.rewritten or case.graph) for case in given)
        first = len(patterns_by_id(matched))
        found = found_patterns(cases, self._opened.device, first_id=first, allow_tf32=self._problem.allow_tf32)
        if all(map(_only_spares, given)) and not any(map(_has_zeros, (p for m in found for p in m.patterns))):
            return ()  # no kernel of this target leaves zeros out
        self._say(f"tried beside the module as it is: {'; '.join(dict.fromkeys(steps))}")
        return found

    def _looked_into(
        self, whole: tuple[Known, ...], matched: tuple[Matched, ...], called: Recipe
    ) -> tuple[LookedInto | None, tuple[Known, ...]]:
        """What the main case spends its time in, and what was realised of it before beside the `whole` of it."""
        if self._problem.mode != "inference":
            return None, whole
        looked, graph = self._opened.judge.look_into(), self._opened.cases[0].graph
        if looked is None or graph is None:
            return None, whole
        patterns = matched[0].patterns
        subproblems = known_of_subproblems(
            self._problem, graph, [*map(subproblem_of, patterns), *subproblems_written(called)], looked.spreads,
            machine=self._opened.machine, folder=self._places.realised,
        )  # fmt: skip
        return looked, (*whole, *subproblems)

    def _notes(self, looked: LookedInto) -> tuple[Document, ...]:
        """What speaks of what is left to torch, and of what can win most: notes, and vetted examples, which are rules
        with their code and what the judge took here."""
        parts = looked.discovery.parts
        sought = " ".join(dict.fromkeys(p.title for p in (*(p for p in parts if not p.pattern), *parts)))
        there, mine = self._opened.device.architecture, table.entries(self._places.realised)
        vetted = [e for e in mine if e.problem.target == self._problem.target and not doubt_of(e, self._opened.machine)]
        known = (*packaged(), *map(document_of, vetted))
        found = (
            Index(d for d in known if d.kind in kinds).search(sought, architecture=there, most=most)
            for kinds, most in _MOST_KNOWN
        )
        return tuple(hit.document for hits in found for hit in hits)

    def _near(self) -> tuple[SourceFile, ...]:
        """The skeletons that a model or an agent may learn from; () where neither makes the moves."""
        request = self._request
        if request.model is None and request.strategy != AGENT:
            return ()
        graph = self._opened.cases[0].graph
        ops = {node.op for node in graph.nodes} if graph is not None else set()
        return skeletons_near(category(graph), self._problem.target, ops, depthwise=is_depthwise(graph))

    def _start(self, matched: tuple[Matched, ...], remembered: Recipe) -> Candidate | None:
        """Every pattern realised, at the point that won before or the likeliest one; None where nothing matched."""
        known = {choice.pattern: choice.point for choice in remembered}
        patterns = patterns_by_id(matched).values()
        recipe = tuple(Choice(pattern=p.id, point=known.get(p.id, p.space.points[0])) for p in patterns)
        problem = self._problem
        return (
            compose(problem.source, self._opened.cases, matched, recipe, device=self._opened.device) if recipe else None
        )


def _new(kept: Recipe, known: tuple[Known, ...]) -> Recipe:
    """Without what is known of a pattern by itself."""
    there = [k.realised.what for k in known if k.name]
    return tuple(c for c in kept if c.written is not None and c.written.candidate not in there)


def _only_spares(case: CaseFacts) -> bool:
    """Whether algebra changes nothing in a case but that zeros of products' factors may be left out."""
    return case.rewritten is None or (case.graph is not None and case.rewritten == replace(case.graph, sparing=True))


def _has_zeros(pattern: Pattern) -> bool:
    product = pattern.program.product
    return product is not None and bool(product.left.within or product.right.within)
