"""One run: open the journal, learn what a strategy may know, drive it to its end, hand over candidate and report."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ..edges.gpu.machine import architecture, threads
from ..edges.gpu.machine import machine as measured_machine
from ..edges.ledger import Ledger
from ..edges.llm import Keys, Model, open_model
from ..edges.sandbox.forkserver import start_ahead
from ..edges.toolchain import versions
from ..facts.candidate import Candidate, SourceFile
from ..facts.dialogue import ModelChoice, Reply
from ..facts.errors import UserError
from ..facts.machine import Machine
from ..facts.move import Ask, Await, Event, Inspect, Move, Outcome, Sanitize, Stop, Try, Tune
from ..facts.outcome import Failure, Inspected, Sanitized, Station, Timed, Tuned
from ..facts.pattern import Choice, Recipe
from ..facts.problem import Problem, Target
from ..facts.run import AGENT, Brief, CaseFacts, Limits, Matched, Request, Timing
from ..stages.patterns import match
from ..stages.propose.compose import compose
from ..stages.propose.near import skeletons_near
from ..stages.propose.targets import renderer
from ..stages.tune import memory
from ..strategies import ASKING, STRATEGIES, given
from ..strategies.category import category
from . import sanitize as sanitizing
from .ahead import Objects, compiled_ahead
from .drive import Strategy, drive
from .foresee import foreseen
from .training import match_training
from .winners import known_winners, winner_of

if TYPE_CHECKING:
    from .evaluate import Judge

Say = Callable[[str], None]
_USUAL = Timing()
_UNLIMITED = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a model is reached: where its keys are, and whether to wait for a reply that takes its time."""

    keys: Keys
    wait: bool = True


_NOBODY = Access(keys=lambda names: None)


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
    def winners(self) -> Path:
        return self.cache / memory.FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    brief: Brief
    events: tuple[Event, ...]
    stop: Stop
    candidate: Candidate
    candidate_dir: Path | None  # None: a given candidate, which lies where it lay


def optimize(
    problem: Problem, *, places: Places, strategy: str, budget_s: float, seed: int, say: Say,
    sanitize: bool | None = None, timing: Timing = _USUAL, model: ModelChoice | None = None,
    limits: Limits = _UNLIMITED, access: Access = _NOBODY,
) -> Finished:  # fmt: skip
    """A new run in `places.out`; UserError if that folder already holds a run, or for a fault of the problem's.
    `sanitize` of None: where compute-sanitizer can be had. Raises Pending where a model's reply has not come yet:
    `resume` then goes on."""
    require_model(strategy, model is not None)
    request = Request(
        run=uuid.uuid4().hex[:12], problem=problem, strategy=strategy, seed=seed, budget_s=budget_s, timing=timing,
        sanitize=not sanitizing.absent(problem.target) if sanitize is None else sanitize, model=model, limits=limits,
    )  # fmt: skip
    if model is not None:
        open_model(model, run=request.run, keys=access.keys)  # what is wrong with its name is said before any work
    with _new_journal(request, places) as ledger:
        return _carry_on(request, ledger=ledger, places=places, say=say, access=access)


def require_model(strategy: str, named: bool) -> None:
    """Raise UserError where a strategy asks a model and none is named, or the other way round."""
    if (strategy in ASKING) != named:
        raise UserError(
            f"strategy {strategy!r} asks no model; leave --model out, or choose --strategy {' or '.join(ASKING)}"
            if named else f"strategy {strategy!r} asks a model: name one with --model"
        )  # fmt: skip


def judge_given(
    problem: Problem, candidate: Candidate, *, places: Places, seed: int, say: Say, sanitize: bool = False,
    timing: Timing = _USUAL,
) -> Finished:  # fmt: skip
    """Judge one candidate: a run with nothing to search; `Finished.stop.best` is None if it was refused."""
    request = Request(
        run=uuid.uuid4().hex[:12], problem=problem, strategy="given", seed=seed, budget_s=0.0, timing=timing
    )
    with _new_journal(request, places) as ledger, Workbench(request, places=places, say=say) as bench:
        brief = bench.brief(request)
        ledger.write(brief)
        stop = _driven(brief, given(candidate, sanitize=sanitize), ledger=ledger, bench=bench)
        return Finished(brief=brief, events=ledger.events(), stop=stop, candidate=candidate, candidate_dir=None)


def _new_journal(request: Request, places: Places) -> Ledger:
    if places.journal.exists():
        raise UserError(
            f"{places.out}: holds {_described(places)}; "
            f"continue it with `tilewright resume {places.out}`, or choose another --out"
        )
    ledger = Ledger(places.journal)
    ledger.write(request)
    return ledger


def resume(*, places: Places, say: Say, access: Access = _NOBODY) -> Finished:
    """Continue the run in `places.out` from its journal; a finished run is handed over again without any work."""
    if not places.journal.exists():
        raise UserError(
            f"{places.out}: no run here (no run.db); start one with `tilewright optimize FILE --out {places.out}`"
        )
    with Ledger(places.journal) as ledger:
        request = ledger.request()
        if request is None:
            raise UserError(
                f"{places.out}: the run was stopped before its first record; remove the folder and start again"
            )
        if request.strategy == AGENT:
            raise UserError(
                f"{places.out}: a coding agent makes the moves of this run; the agent continues it by opening the "
                f"folder again, through `tilewright mcp`; `tilewright report {places.out}` tells how far it is"
            )
        if request.strategy not in STRATEGIES:
            raise UserError(f"{places.out}: holds a single evaluation; run `tilewright evaluate` anew")
        return _carry_on(request, ledger=ledger, places=places, say=say, access=access)


def _described(places: Places) -> str:
    with Ledger(places.journal, readonly=True) as old:
        request = old.request()
    return f"run {request.run} of problem {request.problem.name!r}" if request else "a run that never began"


def _carry_on(request: Request, *, ledger: Ledger, places: Places, say: Say, access: Access) -> Finished:
    brief = ledger.brief()
    machine = brief.machine if brief else None
    with Workbench(request, places=places, say=say, machine=machine, access=access) as bench:
        if brief is None:
            brief = bench.brief(request)
            ledger.write(brief)
        return _finish(brief, ledger=ledger, bench=bench, places=places)


def _finish(brief: Brief, *, ledger: Ledger, bench: Workbench, places: Places) -> Finished:
    ended = any(isinstance(event.move, Stop) for event in ledger.events())
    stop = _driven(brief, STRATEGIES[brief.strategy](brief), ledger=ledger, bench=bench)
    return hand_over(brief, ledger.events(), stop, places=places, say=bench.say, remember=not ended)


def hand_over(
    brief: Brief, events: tuple[Event, ...], stop: Stop, *, places: Places, say: Say, remember: bool
) -> Finished:
    """Write the candidate into the run's folder; with `remember`, keep what was tuned for later runs. Of a run that had
    ended before that was done then, and may have been bettered since."""
    for warning in _remember(brief, events, stop, places.winners) if remember else ():
        say(warning)
    candidate = stop.best if isinstance(stop.best, Candidate) else composed(brief, stop.best or ())
    write_candidate(candidate, places.candidate)
    return Finished(brief=brief, events=events, stop=stop, candidate=candidate, candidate_dir=places.candidate)


def _driven(brief: Brief, strategy: Strategy, *, ledger: Ledger, bench: Workbench) -> Stop:
    return drive(
        strategy,
        ledger=ledger,
        perform=lambda move: bench.perform(brief, move),
        announce=bench.announce,
        held=bench.held,
        watch=lambda event: bench.say(progress(event)),
    )


class Workbench:
    """The workbench of a run: the machine and the judge, each opened when a move first needs it."""

    def __init__(
        self, request: Request, *, places: Places, say: Say, machine: Machine | None = None, access: Access = _NOBODY
    ) -> None:
        self.request = request
        self._access = access
        self._model: Model | None = None
        self.problem = request.problem
        self.places = places
        self.say = say
        self._machine = machine
        self._judge: Judge | None = None
        self._cases: tuple[CaseFacts, ...] = ()
        self._objects = Objects()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """End the judge and its cells; the next move that needs one opens another."""
        judge, self._judge = self._judge, None
        if judge is not None:
            judge.close()

    @property
    def machine(self) -> Machine:
        if self._machine is None:
            self._machine = measured_machine(self.problem.target, cache_dir=self.places.cache)
        return self._machine

    @property
    def judge(self) -> Judge:
        if self._judge is None:
            machine = self.machine
            start_ahead(machine.processors if machine.target == "cpu" else 0)  # it imports torch, while we do
            from ..stages.timing.measure import Effort
            from .evaluate import Judge

            self.say(f"on {machine.device}: running and tracing {self.problem.name}")
            work = (self.places.out / "work").resolve()
            work.mkdir(parents=True, exist_ok=True)
            self._judge = Judge(
                self.problem, machine=machine, seed=self.request.seed, workdir=work, say=self.say,
                effort=Effort(budget_s=self.request.timing.budget_s),
                compile_baseline=self.request.timing.compiled,
            )  # fmt: skip
            self._cases = self._judge.open()
        return self._judge

    @property
    def model(self) -> Model:
        if self._model is None:
            choice = self.request.model
            assert choice is not None
            self._model = open_model(
                choice, run=self.request.run, keys=self._access.keys, wait=self._access.wait, seed=self.request.seed
            )
        return self._model

    def announce(self, moves: tuple[Move, ...]) -> None:
        """Tell the model of all prompts that were made together, before the first is waited for."""
        if asks := [move for move in moves if isinstance(move, Ask)]:
            self.model.announce(asks)

    def brief(self, request: Request) -> Brief:
        self.judge  # noqa: B018  opens it: the cases' facts come from running the reference once
        matched = found_patterns(self._cases, self.problem.target)
        titles = [p.title for p in matched[0].patterns]
        self.say(f"matched in the main case: {'; '.join(titles) or 'nothing'}")
        remembered, hinted = known_winners(
            matched, self.machine, winners=self.places.winners, shipped=self.places.shipped
        )
        known = {choice.pattern for choice in remembered} if request.strategy != "tune" else set()
        matched = foreseen(
            matched, self.machine, arch=architecture(self.problem.target), known=known, say=self.say,
            folder=self.places.libraries, objects=self._objects,
        )  # fmt: skip
        return Brief(
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
            versions=versions(),
            hinted=hinted,
            model=request.model.name if request.model else "",
            limits=request.limits,
            start=self._start(matched, remembered) if request.model else None,
            near=self._near(request),
            held=self.held(),
        )

    def held(self) -> tuple[Station, ...]:
        """For what the device was held since this was last asked, and how long."""
        return self._judge.held() if self._judge is not None else ()

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
        return compose(problem.source, self._cases, matched, recipe, target=problem.target) if recipe else None

    def perform(self, brief: Brief, move: Move) -> Outcome:
        match move:
            case Try(what=Candidate() as candidate):
                return self.judge.evaluate(candidate, foreign=True)
            case Try(what=tuple() as recipe):
                ours = composed(brief, recipe)
                return self.judge.evaluate(ours, compiled=self._compiled(ours, recipe))
            case Ask():
                return self.model.ask(move)
            case Inspect(what=tuple() as recipe):
                return self.judge.inspect(composed(brief, recipe))
            case Inspect(what=(Candidate() | None) as what):
                return self.judge.inspect(what)
            case Sanitize(what=Candidate() as candidate):
                return self.judge.sanitize(candidate)
            case Sanitize(what=tuple() as recipe):
                return self.judge.sanitize(composed(brief, recipe))
            case Tune():
                ours = composed(brief, move.recipe)
                tries = tuple(Choice(pattern=move.pattern, point=point) for point in move.points)
                compiled = self._compiled(ours, (*move.recipe, *tries))
                return self.judge.tune(ours, move.pattern, move.points, compiled=compiled)
        raise UserError(f"strategy {brief.strategy!r} made a {type(move).__name__} move, which nobody carries out")

    def _compiled(self, candidate: Candidate, choices: Recipe) -> tuple[Path, ...]:
        """Its kernels, compiled on all processors while no device is leased."""
        self.judge  # noqa: B018  opened first: on the CPU, what it runs then would share the processors
        machine, places = self.machine, self.places
        arch = architecture(self.problem.target)
        return compiled_ahead(
            candidate, choices, folder=places.libraries, jobs=threads(), arch=arch, processors=machine.processors,
            objects=self._objects,
        )  # fmt: skip


def found_patterns(cases: tuple[CaseFacts, ...], target: Target) -> tuple[Matched, ...]:
    """The patterns of every case, numbered through; a case that could not be traced has none."""
    make = renderer(target)
    found: list[Matched] = []
    for index, case in enumerate(cases):
        if case.graph is None:
            found.append(Matched(case=index, patterns=(), unmatched=(case.trace_failure,)))
            continue
        first, before = sum(len(m.patterns) for m in found), sum(len(m.segments) for m in found)
        if case.graph.wanted:
            found.append(match_training(case.graph, case=index, first_id=first, first_segment=before,
                                        unsupported=make.unsupported, space=make.space))  # fmt: skip
            continue
        found.append(match(case.graph, case=index, first_id=first, unsupported=make.unsupported, space=make.space))
    return tuple(found)


def composed(brief: Brief, recipe: Recipe) -> Candidate:
    return compose(brief.problem.source, brief.cases, brief.matched, recipe, target=brief.problem.target)


def write_candidate(candidate: Candidate, folder: Path) -> None:
    """Replace `folder` by the candidate's files; on a failure half-way the old folder is still there."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    for file in candidate.files:
        path = new / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def _remember(brief: Brief, events: tuple[Event, ...], stop: Stop, winners: Path) -> Iterator[str]:
    """Keep tuned points of the recipe that is handed over, and of others that the judge found right, if not faster, for
    later runs on this machine; yields what went wrong, if anything."""
    right = [e.move.what for e in events if isinstance(e.move, Try) and isinstance(e.outcome, Timed)]
    recipes = [what for what in (*right, stop.best) if isinstance(what, tuple)]
    chosen = {c.pattern: c.point for recipe in recipes for c in recipe}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for event in events:
        if isinstance(event.move, Tune) and event.move.pattern in chosen:
            winner = winner_of(brief, event, chosen[event.move.pattern], found_at=now)
            warning = memory.remember(winners, winner) if winner is not None else ""
            if warning:
                yield warning


def progress(event: Event) -> str:
    """One line of progress for an event."""
    match event.move, event.outcome:
        case Stop() as stop, _:
            return f"done: {stop.why}"
        case Await(agent=agent), _:
            return f"waited for {agent} ({event.wall_s:.1f} s)"
        case Tune() as tune, Tuned() as tuned:
            times = [p.time_ns.mid for p in tuned.points if p.time_ns is not None]
            best = f"best {min(times) / 1e3:.1f} us" if times else "none ran"
            return f"tune {tune.pattern}: {len(tuned.points)} points, {best} ({event.wall_s:.1f} s)"
        case Try() as move, Timed() as timed:
            ratio = timed.ratio("eager")
            speed = f"{ratio.mid:.2f}x of eager [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else "untimed"
            return f"judged ({move.why}): accepted, {speed} ({event.wall_s:.1f} s)"
        case Ask() as ask, Reply() as reply:
            tokens = f"{reply.usage.output_tokens} tokens" if reply.usage else "tokens unknown"
            price = "price unknown" if reply.price_usd is None else f"${reply.price_usd:.4f}"
            return f"asked {reply.model} ({ask.why}): {tokens}, {price} ({event.wall_s:.1f} s)"
        case Inspect(), Inspected() as inspected:
            return f"profiled: {inspected.ns / 1e3:.1f} us under {inspected.kinds} name(s) ({event.wall_s:.1f} s)"
        case Sanitize(), Sanitized() as sanitized:
            clean = f"no errors by {' and '.join(sanitized.clean)}" if sanitized.clean else "not run"
            return f"compute-sanitizer: {'; '.join([clean, *sanitized.notes])} ({event.wall_s:.1f} s)"
        case move, Failure() as failure:
            return f"{type(move).__name__.lower()}: refused at {failure.stage}: {failure.reason}: {failure.summary}"
    return f"{type(event.move).__name__} ({event.wall_s:.1f} s)"
