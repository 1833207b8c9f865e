"""The evaluator of a run: what is done with a problem on the machine that has the device, all but asking a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from ..edges.gpu.machine import identity, threads
from ..edges.gpu.machine import known as known_machine
from ..edges.gpu.machine import machine as measured_machine
from ..edges.sandbox.forkserver import start_ahead
from ..edges.toolchain import languages, versions
from ..edges.toolchain.languages import cutlass_headers
from ..facts.candidate import Candidate, SourceFile
from ..facts.device import Device
from ..facts.devices import device_of
from ..facts.document import Document
from ..facts.errors import UserError
from ..facts.machine import Machine
from ..facts.move import Capture, Compose, Enter, Inspect, Move, Outcome, Sanitize, Try, Tune, Verify, Within
from ..facts.outcome import Station
from ..facts.pattern import INDUCTOR, Choice, Pattern, Recipe, subproblem_of, subproblems_written
from ..facts.realised import Known
from ..facts.run import AGENT, GIVEN, CaseFacts, Matched, Request, SearchContext
from ..facts.verdict import Verified
from ..fusion import match
from ..judge.lacks import Lacks
from ..judge.verify import VerifiedSubject, verified, with_memory
from ..realise.compose import compose
from ..realise.digests import skeleton_digests
from ..realise.library.inductor import baselines
from ..realise.table import realisers
from ..realise.written.near import skeletons_near
from ..search.retrieve import Index, packaged
from ..search.retrieve import store as table
from ..search.strategies import WITH_ALGEBRA
from ..search.strategies.category import category
from ..search.tune import memory
from .ahead import Objects, built_by_nvcc, compiled_ahead
from .foresee import foreseen
from .others import called_libraries, inductor_points
from .realisations import document_of, doubt_of, is_solved, known_of_module, known_of_subproblems, vouched
from .subproblems import Subproblems
from .training import match_training
from .winners import known_winners

if TYPE_CHECKING:
    from ..judge.discover import LookedInto
    from ..judge.evaluate import Judge
    from ..judge.patience import Patience

Say = Callable[[str], None]
_MOST_KNOWN: tuple[tuple[tuple[str, ...], int], ...] = ((("note",), 3), (("rule", "realised"), 2))  # shown to a model


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a run keeps its things: `out` its own folder, `cache` what is shared between runs on this machine;
    `shipped`: the winners that came with the package."""

    out: Path
    cache: Path
    shipped: Path = memory.SHIPPED

    @property
    def journal(self) -> Path:
        return self.out / "run.db"

    @property
    def candidate(self) -> Path:
        return self.out / "candidate"

    @property
    def libraries(self) -> Path:
        """Of compiled kernels."""
        return self.cache / "libraries"

    @property
    def realised(self) -> Path:
        """The table of what was realised before."""
        return self.cache / table.FOLDER

    @property
    def winners(self) -> Path:
        return self.cache / memory.FILE


class Bench(Protocol):
    """What carries out all moves of a run but a model's: `Evaluator`, or a fake one."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def context(self, request: Request) -> SearchContext: ...

    def perform(self, context: SearchContext, move: Move) -> Outcome: ...

    def held(self) -> tuple[Station, ...]: ...

    def start_afresh(self) -> None: ...


class BenchOf(Protocol):
    def __call__(self, request: Request, *, places: Places, say: Say, machine: Machine | None) -> Bench: ...


class Evaluator:
    """The machine and the judge, each opened when a move first needs it."""

    def __init__(
        self, request: Request, *, places: Places, say: Say, machine: Machine | None = None,
        objects: Objects | None = None,
    ) -> None:  # fmt: skip
        """`objects`: what others of the same run have compiled, to share."""
        self.request = request
        self.problem = request.problem
        self.places = places
        self.say = say
        self._machine = machine
        self._judge: Judge | None = None
        self._cases: tuple[CaseFacts, ...] = ()
        self._objects = objects if objects is not None else Objects()
        self._pieces: Subproblems | None = None
        self._lacks = Lacks(
            self.problem.target, workdir=(places.out / "work").resolve(),
            hidden=(Path.home(), Path(self.problem.path).absolute()),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """End the judge and its cells; the next move that needs one opens another."""
        if self._pieces is not None:
            self._pieces.close()
        self._end_judge()

    def _end_judge(self) -> None:
        judge, self._judge = self._judge, None
        if judge is not None:
            judge.close()

    @property
    def device(self) -> Device:
        """What kernels are made for: this machine's."""
        return device_of(self.machine)

    @property
    def machine(self) -> Machine:
        if self._machine is None:
            self.judge  # noqa: B018  has it measured, once the problem is known to run
        assert self._machine is not None
        return self._machine

    def _measured(self, patience: Patience) -> Machine:
        """Raises TooBusy where calm does not come; but a given candidate may be refused without a clock."""
        (patience.calm if self.request.strategy == GIVEN else patience.require)("measuring this machine")
        self._machine = measured_machine(self.problem.target, cache_dir=self.places.cache, say=self.say)
        return self._machine

    @property
    def judge(self) -> Judge:
        if self._judge is None:
            target, cache, asked = self.problem.target, self.places.cache, self.request
            self._machine = self._machine or known_machine(target, cache_dir=cache)
            machine = self._machine or identity(target)
            threads = machine.processors if machine.target == "cpu" else 0
            start_ahead(threads, machine.target)  # it imports torch, while we do
            from ..judge.evaluate import Judge, JudgeOptions
            from ..judge.timing.measure import Effort

            self.say(f"on {machine.device}: running and tracing {self.problem.name}")
            work = (self.places.out / "work").resolve()
            work.mkdir(parents=True, exist_ok=True)
            self._judge = Judge(
                self.problem, machine=machine, seed=asked.seed, workdir=work, say=self.say,
                options=JudgeOptions(
                    effort=Effort(budget_s=asked.timing.budget_s), compile_baseline=asked.timing.compiled,
                    compile_modes=baselines(self.problem, asked.timing.modes), baselines=cache,
                    explains=asked.model is not None or asked.strategy == AGENT, algebra=asked.algebra,
                ), rates=self._measured if self._machine is None else None,
            )  # fmt: skip
            self._cases = self._judge.open()
        return self._judge

    def announce(self, context: SearchContext, moves: tuple[Move, ...]) -> None:
        """Nothing: moves are carried out when they are made."""

    def context(self, request: Request) -> SearchContext:
        self.judge  # noqa: B018  opens it: the cases' facts come from running the reference once
        matched = found_patterns(self._cases, self.device, allow_tf32=self.problem.allow_tf32)
        titles = [p.title for p in matched[0].patterns]
        self.say(f"matched in the main case: {'; '.join(titles) or 'nothing'}")
        rewritten = self._rewritten(matched) if request.strategy in WITH_ALGEBRA else ()
        both = (*matched, *rewritten)
        remembered, hinted = known_winners(both, self.machine, winners=self.places.winners, shipped=self.places.shipped)
        known = {choice.pattern for choice in remembered} if request.strategy != "tune" else set()
        whole = known_of_module(self.problem, self.machine, self.places.realised) if request.strategy == "fact" else ()
        solved = is_solved(request, whole)
        if solved or request.strategy == GIVEN:  # nobody tunes them
            known |= {p.id for m in both for p in m.patterns}
        both = foreseen(
            both, self.device, known=known, say=self.say,
            folder=self.places.libraries, objects=self._objects, tuned="tuning" not in request.without,
        )  # fmt: skip
        matched, rewritten = both[: len(matched)], both[len(matched) :]
        called, refusals = called_libraries(request, self._cases, matched, device=self.device, say=self.say)
        looked, realised = None, whole
        if request.strategy == "fact" and not solved:
            looked, realised = self._looked_into(whole, matched, called)
        return SearchContext(
            run=request.run,
            problem=request.problem,
            machine=self.machine,
            strategy=request.strategy,
            seed=request.seed,
            budget_s=request.budget_s,
            cases=self._cases,
            matched=matched,
            remembered=remembered,
            sanitize=request.sanitize,
            versions=(*versions(), *skeleton_digests(self.problem.target)),
            languages=languages(request.problem.target),
            hinted=hinted,
            model=request.model.name if request.model else "",
            limits=request.limits,
            start=self._start(matched, remembered) if request.model else None,
            near=self._near(request),
            without=request.without,
            rewritten=rewritten,
            parts=looked.discovery.parts if looked else (),
            spreads=looked.spreads if looked else (),
            known=realised,
            libraries=called if looked or request.strategy != "fact" else (),
            inductor=inductor_points(request, self._cases[0].graph),
            refusals=refusals,
            notes=self._notes(looked) if looked and request.model else (),
            held=self.held(),
        )

    def _rewritten(self, matched: tuple[Matched, ...]) -> tuple[Matched, ...]:
        """The patterns of the cases as declared algebra has them, if it has anything to do."""
        steps = [step for case in self._cases for step in case.algebra]
        if not steps:
            return ()
        cases = tuple(replace(case, graph=case.rewritten or case.graph) for case in self._cases)
        first = sum(len(m.patterns) for m in matched)
        found = found_patterns(cases, self.device, first_id=first, allow_tf32=self.problem.allow_tf32)
        if all(map(_only_spares, self._cases)) and not any(map(_has_zeros, (p for m in found for p in m.patterns))):
            return ()  # no kernel of this target leaves zeros out
        self.say(f"by algebra, with less work: {'; '.join(dict.fromkeys(steps))}")
        return found

    def _looked_into(
        self, whole: tuple[Known, ...], matched: tuple[Matched, ...], called: Recipe
    ) -> tuple[LookedInto | None, tuple[Known, ...]]:
        """What the main case spends its time in, and what was realised of it before beside the `whole` of it."""
        if self.problem.mode != "inference":
            return None, whole
        looked, graph = self.judge.look_into(), self._cases[0].graph
        if looked is None or graph is None:
            return None, whole
        patterns = matched[0].patterns
        subproblems = known_of_subproblems(
            self.problem, graph, [*map(subproblem_of, patterns), *subproblems_written(called)], looked.spreads,
            machine=self.machine, folder=self.places.realised,
        )  # fmt: skip
        return looked, (*whole, *subproblems)

    def _notes(self, looked: LookedInto) -> tuple[Document, ...]:
        """What speaks of what is left to torch, and of what can win most: notes, and vetted examples, which are rules
        with their code and what the judge took here."""
        parts = looked.discovery.parts
        sought = " ".join(dict.fromkeys(p.title for p in (*(p for p in parts if not p.pattern), *parts)))
        there, mine = self.device.architecture, table.entries(self.places.realised)
        vetted = [e for e in mine if e.problem.target == self.problem.target and not doubt_of(e, self.machine)]
        known = (*packaged(), *map(document_of, vetted))
        found = (
            Index(d for d in known if d.kind in kinds).search(sought, architecture=there, most=most)
            for kinds, most in _MOST_KNOWN
        )
        return tuple(hit.document for hits in found for hit in hits)

    def held(self) -> tuple[Station, ...]:
        """For what the device was held since this was last asked, and how long."""
        subproblems = self._pieces.held() if self._pieces is not None else ()
        return (*subproblems, *(self._judge.held() if self._judge is not None else ()))

    @property
    def subproblems(self) -> Subproblems:
        """The benches of the module's subproblems; the module's own cells make room for theirs."""
        self._end_judge()
        if self._pieces is None:
            self._pieces = Subproblems(
                self.request, places=self.places, machine=self.machine, say=self.say,
                bench_of=partial(Evaluator, objects=self._objects),
            )  # fmt: skip
        return self._pieces

    def _near(self, request: Request) -> tuple[SourceFile, ...]:
        """The skeletons that a model or an agent may learn from; () where neither makes the moves."""
        if request.model is None and request.strategy != AGENT:
            return ()
        return skeletons_near(category(self._cases[0].graph), self.problem.target)

    def _start(self, matched: tuple[Matched, ...], remembered: Recipe) -> Candidate | None:
        """Every pattern realised, at the point that won before or the likeliest one; None where nothing matched."""
        known = {choice.pattern: choice.point for choice in remembered}
        patterns = [p for m in matched for p in m.patterns]
        recipe = tuple(Choice(pattern=p.id, point=known.get(p.id, p.space.points[0])) for p in patterns)
        problem = self.problem
        return compose(problem.source, self._cases, matched, recipe, device=self.device) if recipe else None

    def perform(self, context: SearchContext, move: Move) -> Outcome:
        """What comes of a move. Raises Lack where the machine lacks what the move's candidate may need."""
        outcome = self._performed(context, move)
        match move:
            case Try(what=what) | Inspect(what=what) | Sanitize(what=what) | Capture(what=what) | Verify(what=what):
                about: Candidate | Recipe | None = what
            case Tune(recipe=recipe):
                about = recipe
            case _:
                about = None
        if about is None:
            return outcome
        candidate = about if isinstance(about, Candidate) else composed(context, about)
        offered = [name for name, _ in context.languages] if self._by_others(context, about) else None
        return self._lacks.require(candidate, outcome, offered=offered)

    def _by_others(self, context: SearchContext, about: Candidate | Recipe) -> bool:
        """Whether a model or an agent has written the candidate, or a part of the recipe."""
        if isinstance(about, Candidate):
            written = [about]
        else:
            written = [choice.written.candidate for choice in about if choice.written is not None]
        return context.strategy != GIVEN and any(candidate.id not in self._objects.ours for candidate in written)

    def _performed(self, context: SearchContext, move: Move) -> Outcome:
        self._objects.ours.update(c.written.candidate.id for c in context.libraries if c.written is not None)
        if isinstance(move, Enter):
            return self.subproblems.entered(context, move.subproblem)
        if isinstance(move, Within):
            return self.subproblems.perform(context, move)
        if self._pieces is not None:
            self._pieces.close()
        match move:
            case Try(what=Candidate() as candidate):
                return self.judge.evaluate(candidate, foreign=True, compiled=self._by_nvcc([candidate]))
            case Try(what=tuple() as recipe):
                ours = composed(context, recipe)
                foreign = any(choice.written is not None for choice in recipe)
                return self.judge.evaluate(
                    ours, foreign=foreign, compiled=self._compiled(ours, recipe), vouched=vouched(context, ours)
                )
            case Compose(recipe=recipe):
                return composed(context, recipe)
            case Inspect(what=tuple() as recipe, question=question):
                return self.judge.inspect(composed(context, recipe), question)
            case Inspect(what=(Candidate() | None) as what, question=question):
                return self.judge.inspect(what, question)
            case Sanitize(what=Candidate() as candidate):
                return self.judge.sanitize(candidate)
            case Sanitize(what=tuple() as recipe):
                return self.judge.sanitize(composed(context, recipe))
            case Capture(what=what):
                ours = what if isinstance(what, Candidate) else composed(context, what)
                choices = () if isinstance(what, Candidate) else what
                built = self._compiled(ours, choices) if choices else self._by_nvcc([ours])
                return self.judge.capture(ours, compiled=built)
            case Verify():
                return self._verified(context, move.what)
            case Tune():
                ours = composed(context, move.recipe)
                tries = tuple(Choice(pattern=move.pattern, point=point) for point in move.points)
                compiled = self._compiled(ours, (*move.recipe, *tries))
                return self.judge.tune(ours, move.pattern, move.points, compiled=compiled)
        raise UserError(f"strategy {context.strategy!r} made a {type(move).__name__} move, which nobody carries out")

    def _verified(self, context: SearchContext, candidate: Candidate) -> Verified:
        """By its text; what addresses memory also runs between guard pages, where the text proves nothing. On a GPU
        the winner alone goes under compute-sanitizer."""
        found = verified(
            candidate, VerifiedSubject(problem=self.problem, cases=context.cases, device=self.machine.device)
        )
        unknown = any(v.verifier == "memory" and v.says == "unknown" for v in found.verdicts)
        if self.problem.target != "cpu" or found.proven or not unknown:
            return found
        return with_memory(found, self.judge.sanitize(candidate))

    def _compiled(self, candidate: Candidate, choices: Recipe) -> tuple[Path, ...]:
        """Its kernels, compiled on all processors while no device is leased; those of others compile themselves."""
        theirs = self._by_nvcc([choice.written.candidate for choice in choices if choice.written is not None])
        others = {INDUCTOR, *(choice.pattern for choice in choices if choice.written is not None)}
        choices = tuple(choice for choice in choices if choice.pattern not in others)
        self.judge  # noqa: B018  opened first: on the CPU, what it runs then would share the processors
        return theirs + compiled_ahead(
            candidate, choices, folder=self.places.libraries, jobs=threads(), device=self.device, objects=self._objects
        )

    def _by_nvcc(self, candidates: Sequence[Candidate]) -> tuple[Path, ...]:
        return built_by_nvcc(
            candidates, headers=cutlass_headers(), folder=self.places.libraries, jobs=threads(), objects=self._objects
        )


def found_patterns(
    cases: tuple[CaseFacts, ...], device: Device, *, first_id: int = 0, allow_tf32: bool = False
) -> tuple[Matched, ...]:
    """The patterns of every case, numbered through; a case that could not be traced has none."""
    make = realisers(device)
    one = partial(match, unsupported=make.unsupported, space=make.space, allow_tf32=allow_tf32)
    training = partial(match_training, unsupported=make.unsupported, space=make.space, allow_tf32=allow_tf32)
    found: list[Matched] = []
    for index, case in enumerate(cases):
        first, before = first_id + sum(len(m.patterns) for m in found), sum(len(m.segments) for m in found)
        if case.graph is None:
            found.append(Matched(case=index, patterns=(), unmatched=(case.trace_failure,)))
        elif case.graph.wanted:
            found.append(training(case.graph, case=index, first_id=first, first_segment=before))
        else:
            found.append(one(case.graph, case=index, first_id=first))
    return tuple(found)


def composed(context: SearchContext, recipe: Recipe) -> Candidate:
    context = context.behind(recipe)
    return compose(context.problem.source, context.cases, context.matched, recipe, device=device_of(context.machine))


def _only_spares(case: CaseFacts) -> bool:
    """Whether algebra changes nothing in a case but that zeros of products' factors may be left out."""
    return case.rewritten is None or (case.graph is not None and case.rewritten == replace(case.graph, sparing=True))


def _has_zeros(pattern: Pattern) -> bool:
    product = pattern.program.product
    return product is not None and bool(product.left.within or product.right.within)
