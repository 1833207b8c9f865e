"""One run: open the journal, learn what a strategy may know, drive it to its end, hand over candidate and report."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ..edges.gpu.lease import unwaited
from ..edges.ledger import Ledger
from ..edges.models import Keys, Model, open_model
from ..facts.candidate import Candidate
from ..facts.dialogue import Reply, ToolAnswer
from ..facts.errors import HarnessError, ModelOut, Pending, UserError
from ..facts.machine import Machine
from ..facts.move import (
    Ask,
    Await,
    CallTool,
    Capture,
    Enter,
    Event,
    Inspect,
    Interleave,
    Move,
    Outcome,
    Sanitize,
    Stop,
    Try,
    Tune,
    Verify,
    Within,
)
from ..facts.outcome import Captured, Failure, Inspected, Interleaved, Sanitized, Station, Timed, Tuned
from ..facts.problem import Problem
from ..facts.run import GIVEN, Request, SearchContext, Timing, patterns_by_id
from ..facts.time_budget import TimeBudget
from ..facts.verdict import Verified
from ..judge import sanitize as sanitizing
from ..search.retrieve import lessons
from ..search.strategies import ASKING, MAY_ASK, PARTS, STRATEGIES, given
from ..search.tune import memory
from .drive import Elsewhere, JournalMismatch, Strategy, drive
from .evaluator import Evaluator
from .in_time import OutOfTime, best_of, ended_in_time
from .kernels_kept import keep, kernels_won
from .lessons import learnt, offered
from .matching import composed
from .places import Places, Say
from .realisations import realised_by
from .remote import Remote, bundle_folder
from .winnable import say_winnable
from .winners import kept_as, winner_of

_USUAL = Timing()
_LEAST_OF_RESUMED = 0.25  # of the budget, for a run that goes on after its time


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccess:
    """How others are reached: where a model's keys are, and whether to wait for what takes its time, a model's reply or
    the answer of another machine."""

    keys: Keys
    wait: bool = True


_NOBODY = ModelAccess(keys=lambda names: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    context: SearchContext
    events: tuple[Event, ...]
    stop: Stop
    candidate: Candidate
    candidate_dir: Path | None  # None: a given candidate, which lies where it lay
    cut_short: bool = False  # something ended the search after a candidate had been accepted


def optimize(request: Request, *, places: Places, say: Say, access: ModelAccess = _NOBODY) -> Finished:
    """A new run in `places.out`; UserError if that folder already holds a run of which something came, or for a fault
    of the problem's. `Request.budget_s` bounds all of it on the wall's clock; what was accepted is handed over whatever
    ends the search then: the budget, an interruption, a fault of ours. Raises Pending where a model's reply or the
    evaluator's answer has not come yet: `resume` then goes on."""
    require_model(request.strategy, request.model is not None)
    require_parts(request.strategy, request.without)
    if request.evaluator:
        bundle_folder(request.evaluator)  # what is wrong with its name is said before any work
    if request.model is not None:  # and with the model's
        open_model(request.model, run=request.run, keys=access.keys)
    with _new_journal(request, places) as ledger:
        return _carry_on(request, ledger=ledger, places=places, say=say, access=access)


def new_run() -> str:
    """The name of a run: no other has it."""
    return uuid.uuid4().hex[:12]


def require_model(strategy: str, named: bool) -> None:
    """Raise UserError where a strategy asks a model and none is named, or the other way round."""
    if strategy not in MAY_ASK and (strategy in ASKING) != named:
        asking = " or ".join((*MAY_ASK, *ASKING))
        raise UserError(
            f"strategy {strategy!r} asks no model; leave --model out, or choose --strategy {asking}"
            if named else f"strategy {strategy!r} asks a model: name one with --model"
        )  # fmt: skip


def require_parts(strategy: str, without: Sequence[str]) -> None:
    """Raise UserError where a strategy has no such part to be switched off."""
    known = PARTS.get(strategy, ())
    if unknown := [part for part in without if part not in known]:
        raise UserError(
            f"--without {unknown[0]}: strategy {strategy!r} has "
            + (f"no such part; it has {', '.join(known)}" if known else "no parts that can be switched off")
        )


def judge_given(
    problem: Problem, candidate: Candidate, *, places: Places, seed: int, say: Say, sanitize: bool = False,
    timing: Timing = _USUAL, racecheck: bool = False,
) -> Finished:  # fmt: skip
    """Judge one candidate: a run with nothing to search; `Finished.stop.best` is None if it was refused."""
    request = Request(
        run=new_run(), problem=problem, strategy=GIVEN, seed=seed, budget_s=0.0, timing=timing, racecheck=racecheck
    )
    with _new_journal(request, places) as ledger, Evaluator(request, places=places, say=say) as bench:
        context = bench.context(request)
        ledger.write(context)
        stop = _driven(
            context, given(candidate, sanitize=sanitize), ledger=ledger, executor=_Executor(request, bench), say=say
        )
        return Finished(context=context, events=ledger.events(), stop=stop, candidate=candidate, candidate_dir=None)


def _new_journal(request: Request, places: Places) -> Ledger:
    """A run that was stopped before anything came of it gives its folder up: the problem may have been mended since."""
    ledger = Ledger(places.journal)
    try:
        old = ledger.request()
        if old is not None and (ledger.count() or old.evaluator):  # with an evaluator, an order of it may lie there
            raise UserError(
                f"{places.out}: holds run {old.run} of problem {old.problem.name!r}; "
                f"continue it with `tilewright resume {places.out}`, or choose another --out"
            )
        ledger.begin_anew()
        ledger.write(request)
    except BaseException:
        ledger.close()
        raise
    return ledger


def begun(places: Places) -> Problem | None:
    """The problem of the run in `places.out`; None where none is there, or nothing came of it."""
    if not places.journal.exists():
        return None
    with Ledger(places.journal, readonly=True) as ledger:
        request = ledger.request()
        return request.problem if request is not None and ledger.count() else None


def resume(*, places: Places, say: Say, access: ModelAccess = _NOBODY) -> Finished:
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
        if request.from_outside:
            raise UserError(
                f"{places.out}: a coding agent makes the moves of this run; the agent continues it by opening the "
                f"folder again, through `tilewright mcp`; `tilewright report {places.out}` tells how far it is"
            )
        if request.strategy not in STRATEGIES:
            raise UserError(f"{places.out}: holds a single evaluation; run `tilewright evaluate` anew")
        return _carry_on(request, ledger=ledger, places=places, say=say, access=access)


def _carry_on(request: Request, *, ledger: Ledger, places: Places, say: Say, access: ModelAccess) -> Finished:
    """Raises what ends the search before anything was accepted; with what was, that is handed over."""
    context, events = ledger.context(), ledger.events()
    ended = any(isinstance(event.move, Stop) for event in events)
    spent_s = (context.opened_s if context else 0.0) + sum(event.wall_s for event in events)
    least_s = _LEAST_OF_RESUMED * request.budget_s  # for a run that goes on after its time
    time = TimeBudget.of(request.budget_s, spent_s=min(spent_s, request.budget_s - least_s), clock=unwaited)
    try:
        with ended_in_time(_of_here(time, request)) as judged:
            context, stop = _searched(
                request, ledger=ledger, places=places, say=say, access=access, time=time, judged=judged.set
            )  # fmt: skip
    except (Exception, KeyboardInterrupt) as error:
        return _cut_short(error, ledger, places=places, say=say)
    return hand_over(context, ledger.events(), stop, places=places, say=say, remember=not ended)


def _of_here(time: TimeBudget, request: Request) -> TimeBudget:
    """Without an end where others take the time: a model that is asked, another machine."""
    return TimeBudget() if request.evaluator or request.model is not None else time


def _searched(
    request: Request, *, ledger: Ledger, places: Places, say: Say, access: ModelAccess, time: TimeBudget,
    judged: Callable[[], None],
) -> tuple[SearchContext, Stop]:  # fmt: skip
    """`judged` is called whenever a candidate has its verdict, as soon as that is in the journal."""
    context = ledger.context()
    machine = context.machine if context else None
    with _bench(
        request, ledger=ledger, places=places, say=say, machine=machine, wait=access.wait, time=time
    ) as bench:  # fmt: skip
        if context is None:
            context = bench.context(request)
            if isinstance(bench, Evaluator):
                say_winnable(bench.judge, context, say=say)
            if not request.evaluator and request.model is None:
                context = replace(context, opened_s=time.passed_s())
            context = offered(context, request, folder=places.lessons)
            ledger.write(context)
        executor = _Executor(request, bench, access)
        kept = _Kept(context, ledger, places.candidate, judged)
        strategy = STRATEGIES[context.strategy](context)
        return context, _driven(context, strategy, ledger=ledger, executor=executor, say=say, accepted=kept.write)


def _cut_short(error: BaseException, ledger: Ledger, *, places: Places, say: Say) -> Finished:
    """What was accepted before the search was ended by an error, a signal or the clock; the journal can go on. Raises
    the error where nothing was, and where it asks for something of the user."""
    context, events = ledger.context(), ledger.events()
    best = best_of(events)
    if isinstance(error, JournalMismatch | UserError | Pending | ModelOut):
        raise error
    if context is not None and best is None and isinstance(error, OutOfTime):
        stop = Stop(best=None, why=f"the budget of {context.budget_s:g} s ended before anything faster was accepted")
    elif context is not None and best is not None:
        stop = Stop(best=best.what, why=f"{best.told}; {_why_cut(error)}")
    elif isinstance(error, OutOfTime):
        raise UserError("the budget ended before the module was traced and its kernels were chosen; give it more")
    else:
        raise error
    say(f"{stop.why}; `tilewright resume {places.out}` goes on")
    events = (*events, Event(seq=len(events), move=stop, outcome=None, wall_s=0.0))  # of the report, not the journal
    return replace(hand_over(context, events, stop, places=places, say=say, remember=True), cut_short=True)


def _why_cut(error: BaseException) -> str:
    if isinstance(error, OutOfTime):
        return "the budget ended in the middle of the next step"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    lines = str(error).strip().splitlines()
    return f"a later step failed: {type(error).__name__}: {lines[0] if lines else ''}"[:300]


class _Kept:
    """The best so far, written into the run's folder as soon as it is accepted; `judged` hears of every verdict."""

    def __init__(self, context: SearchContext, ledger: Ledger, folder: Path, judged: Callable[[], None]) -> None:
        self._context, self._ledger, self._folder, self._judged = context, ledger, folder, judged
        self._written: object = None

    def write(self, event: Event) -> None:
        if not isinstance(event.move, Try):
            return
        best = best_of(self._ledger.events())
        if best is not None and best.what != self._written:
            self._written = best.what
            what = best.what if isinstance(best.what, Candidate) else composed(self._context, best.what)
            write_candidate(what, self._folder)
        self._judged()


def _bench(
    request: Request, *, ledger: Ledger, places: Places, say: Say, machine: Machine | None, wait: bool,
    time: TimeBudget,
) -> Evaluator | Remote:  # fmt: skip
    if request.evaluator:
        return Remote(request, made=ledger.count, events=ledger.events, wait=wait, say=say)
    return Evaluator(request, places=places, say=say, machine=machine, time=_of_here(time, request))


def sanitized_by_default(problem: Problem, evaluator: str = "") -> bool:
    """Whether a winner goes under compute-sanitizer where nobody said: where it is. What another machine lacks it will
    say."""
    return problem.target == "cuda" if evaluator else not sanitizing.absent(problem.target)


def hand_over(
    context: SearchContext, events: tuple[Event, ...], stop: Stop, *, places: Places, say: Say, remember: bool
) -> Finished:
    """Write the candidate into the run's folder; with `remember`, keep what was tuned for later runs. Of a run that had
    ended before that was done then, and may have been bettered since."""
    for warning in _remember(context, events, stop, places.winners) if remember else ():
        say(warning)
    for inside, made in subproblems_of(events) if remember else ():
        for warning in _remember(inside, made, replace(stop, best=None), places.winners):
            say(warning)
    won = realised_by if context.strategy == "fact" else kernels_won
    for entry in won(context, events, stop, journal=str(places.journal.resolve())) if remember else ():
        if warning := keep(places.realised, entry, context.machine):
            say(warning)
    found = learnt(context, events) if remember and context.model else ()
    if found and (warning := lessons.remember(places.lessons, context.run, found)):
        say(warning)
    candidate = stop.best if isinstance(stop.best, Candidate) else composed(context, stop.best or ())
    write_candidate(candidate, places.candidate)
    return Finished(context=context, events=events, stop=stop, candidate=candidate, candidate_dir=places.candidate)


def _driven(
    context: SearchContext, strategy: Strategy, *, ledger: Ledger, executor: _Executor, say: Say,
    accepted: Callable[[Event], None] = lambda event: None,
) -> Stop:  # fmt: skip
    def watch(event: Event) -> None:
        say(progress(event))
        accepted(event)

    return drive(
        strategy, ledger=ledger, perform=lambda move: executor.perform(context, move),
        announce=lambda moves: executor.announce(context, moves), held=executor.held, watch=watch,
    )  # fmt: skip


class _Executor:
    """Who carries out the moves of a run: the model, opened when it is first asked, and the bench."""

    def __init__(self, request: Request, bench: Evaluator | Remote, access: ModelAccess = _NOBODY) -> None:
        self._request, self._bench, self._access = request, bench, access
        self._model: Model | None = None

    @property
    def model(self) -> Model:
        if self._model is None:
            choice = self._request.model
            assert choice is not None
            self._model = open_model(
                choice, run=self._request.run, keys=self._access.keys, wait=self._access.wait, seed=self._request.seed
            )
        return self._model

    def announce(self, context: SearchContext, moves: tuple[Move, ...]) -> None:
        """Tell of all moves that were made together, before the first is waited for."""
        if asks := [move for move in moves if isinstance(move, Ask)]:
            self.model.announce(asks)
        self._bench.announce(context, moves)

    def perform(self, context: SearchContext, move: Move) -> Outcome | Elsewhere:
        return self.model.ask(move) if isinstance(move, Ask) else self._bench.perform(context, move)

    def held(self) -> tuple[Station, ...]:
        return self._bench.held()


def write_candidate(candidate: Candidate, folder: Path) -> None:
    """Replace `folder` by the candidate's files; on a failure half-way the old folder is still there. HarnessError
    where a file would lie elsewhere: it may come from another machine."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    for file in candidate.files:
        path = new / file.path
        if not path.resolve().is_relative_to(new.resolve()):
            raise HarnessError(f"{file.path!r} does not lie in the candidate's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def subproblems_of(events: Sequence[Event]) -> Iterator[tuple[SearchContext, tuple[Event, ...]]]:
    """The problem of each subproblem that was entered, and what was done within it, as in a run of its own."""
    for entered in events:
        if isinstance(entered.move, Enter) and isinstance(entered.outcome, SearchContext):
            made = (e for e in events if isinstance(e.move, Within) and e.move.subproblem == entered.move.subproblem)
            yield entered.outcome, tuple(replace(e, move=e.move.move) for e in made if isinstance(e.move, Within))


def _remember(context: SearchContext, events: tuple[Event, ...], stop: Stop, winners: Path) -> Iterator[str]:
    """Keep tuned points of the recipe that is handed over, and of others that the judge found right, if not faster, for
    later runs on this machine; yields what went wrong, if anything."""
    right = [e.move.what for e in events if isinstance(e.move, Try) and isinstance(e.outcome, Timed)]
    recipes = [what for what in (*right, stop.best) if isinstance(what, tuple)]
    chosen = {c.pattern: c.point for recipe in recipes for c in recipe}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for event in events:
        if isinstance(event.move, Tune) and event.move.pattern in chosen:
            winner = winner_of(context, event, chosen[event.move.pattern], found_at=now)
            pattern = patterns_by_id((*context.matched, *context.rewritten)).get(event.move.pattern)
            for entry in kept_as(winner, pattern) if winner is not None and pattern is not None else ():
                if warning := memory.remember(winners, entry):
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
        case Interleave(candidates=candidates), Interleaved() as turns:
            ratios = [f"{v.ratio.mid:.3g}x" if v.ratio else v.failure[:60] for v in turns.variants[1:]]
            return f"timed in turns: {len(candidates)} candidates, {', '.join(ratios)} ({event.wall_s:.1f} s)"
        case CallTool(tool=tool), ToolAnswer() as answer:
            return f"tool {tool}: {answer.text.splitlines()[0][:100] if answer.text else ''} ({event.wall_s:.1f} s)"
        case Inspect(), Inspected() as inspected:
            return f"profiled: {inspected.ns / 1e3:.1f} us under {inspected.kinds} name(s) ({event.wall_s:.1f} s)"
        case Verify(), Verified() as verified:
            told = [f"{v.verifier} {v.says}" + (f" ({v.why})" if v.says == "proven" else "") for v in verified.verdicts]
            return f"verified: {', '.join(told)} ({event.wall_s:.1f} s)"
        case Sanitize(), Sanitized() as sanitized:
            clean = f"no errors by {' and '.join(sanitized.clean)}" if sanitized.clean else "not run"
            return f"memory: {'; '.join([clean, *sanitized.notes])} ({event.wall_s:.1f} s)"
        case Capture(), Captured() as graph:
            beside = f"{graph.ratio.mid:.2f}x of the module's own" if graph.ratio else f"the module's own: {graph.why}"
            return f"as a CUDA graph: {graph.ours_ns.mid / 1e3:.1f} us, {beside} ({event.wall_s:.1f} s)"
        case Enter(subproblem=subproblem), SearchContext():
            return f"{subproblem.name} ({subproblem.title}): a problem of its own ({event.wall_s:.1f} s)"
        case Within(subproblem=subproblem, move=made), outcome:
            return f"{subproblem.name}: {progress(replace(event, move=made, outcome=outcome))}"
        case move, Failure() as failure:
            return f"{type(move).__name__.lower()}: refused at {failure.stage}: {failure.reason}: {failure.summary}"
    return f"{type(event.move).__name__} ({event.wall_s:.1f} s)"
