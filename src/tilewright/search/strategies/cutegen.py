"""CuTeGen's loop (arXiv 2604.01489): one kernel that evolves, structured debugging, stages that begin on conditions."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ...facts.candidate import Candidate, SourceFile
from ...facts.move import Compose, Inspect, Sanitize
from ...facts.outcome import Failure
from ...facts.pattern import Choice
from ...facts.run import SearchContext
from .asking import Author, CountedMoves, Passed, WrittenReply, shown
from .faster import faster
from .knobs import knobs_of, turned
from .telling import evidence, measured, microseconds, profile, refusal
from .tuning import Steps

MOST_TURNS_OF_KNOBS = 8  # a judgement each
# What reading or writing where it must not looks like, in a reason or in what a driver says.
_OF_MEMORY = re.compile(r"crashed|broke_the_cell|illegal memory|misaligned address|CUDA error|SIGSEGV|SIGBUS")
_TUNING_SHARE = 0.2  # of the budget: no further pattern is tuned after it


@dataclass(frozen=True, slots=True, kw_only=True)
class CutegenPlan:
    """How a loop goes. `keep_best`: a step that is not faster beyond noise is taken back, and the next starts from the
    best; else from the last that passed. `evidence_from`: the step from which measurements stand in the prompt; None:
    once structure has stopped paying, when knobs are turned, too. `remembers`: prompts say what was tried, and what a
    tool that watches memory found."""

    steps: int
    fixes: int
    rounds: int
    keep_best: bool
    evidence_from: int | None
    enough_of_floor: float | None
    remembers: bool = True
    tunes: bool = True  # the library's patterns, before it begins with them
    structure_patience: int = 2  # steps within noise, after which structure has stopped paying
    patience: int = 6  # steps in a row that brought nothing, after which the search stops


PARTS = ("library", "tuning")  # what can be switched off: what the library makes of the module; its tuning alone

OURS = CutegenPlan(steps=60, fixes=5, rounds=1, keep_best=True, evidence_from=None, enough_of_floor=0.95)
# As published: ten steps, profiler from the seventh, five fixes, three rounds, always from the last passing kernel,
# without a memory of what was tried.
PAPER = CutegenPlan(
    steps=10, fixes=5, rounds=3, keep_best=False, evidence_from=7, enough_of_floor=None, remembers=False, patience=10
)  # fmt: skip


def cutegen(context: SearchContext, *, tunes: bool = True) -> Steps[None]:
    """Moves: those of `Author.calls`; `Tune` for each of the library's patterns that has a choice, `Compose` and
    `Try` of what they make of the module; then for each step `Ask` (again once, where nothing came of it) and
    `Try`, with at most five `Ask`s and `Try`s to mend what was refused; once structure has stopped paying, `Try`
    for each value of a knob, and `Inspect` of what a step starts from; `Stop` with the best, at 95% of the floor,
    on a budget, or where nothing helps any more. Without `tunes`, or its part "tuning", the library's points are
    taken as they are; without its part "library" the loop begins with nothing."""
    tunes = tunes and "tuning" not in context.without
    yield from _loop(context, OURS if tunes else replace(OURS, tunes=False))


def cutegen_paper(context: SearchContext) -> Steps[None]:
    """The loop as published, to compare with: see PAPER."""
    yield from _loop(context, PAPER)


def _loop(context: SearchContext, plan: CutegenPlan) -> Steps[None]:
    author = Author(context)
    if plan.keep_best:
        yield from author.calls()
    best: Passed | None = None
    why = ""
    for _ in range(plan.rounds):
        loop = _Round(author, plan)
        why = yield from loop.run()
        if loop.best is not None and (best is None or loop.best.ns < best.ns):
            best = loop.best
        if author.spending.over():
            break
    yield from author.ended(best, why)


class _Round:
    """One evolving kernel: `best` is the fastest that passed, `current` what the next step starts from."""

    def __init__(self, author: Author, plan: CutegenPlan) -> None:
        self.author = author
        self.plan = plan
        self.best: Passed | None = None
        self.current: Passed | None = None
        self.ledger: list[str] = []
        self.seen: set[str] = set()
        self.profiles: dict[str, list[str]] = {}  # what was seen of a candidate, by its id
        self.stage = "structure"
        self.unpaid = 0  # steps in a row that brought nothing
        self.within_noise = 0

    def run(self) -> Steps[str]:
        """Returns why it ended."""
        if self.plan.keep_best:
            yield from self._begin()
        for step in range(1, self.plan.steps + 1):
            if reason := self._enough():
                return reason
            yield from self._step(step)
            if self.stage == "structure" and self._structure_is_over(step):
                self.stage = "profile"
                if self.plan.evidence_from is None:
                    yield from self._turn_knobs()
        return self._enough() or f"{self.plan.steps} steps"

    def _structure_is_over(self, step: int) -> bool:
        wanted = self.plan.evidence_from
        return step + 1 >= wanted if wanted is not None else self.within_noise >= self.plan.structure_patience

    def _begin(self) -> Steps[None]:
        """With what the library makes of the module, tuned, where it makes anything."""
        start = self.author.context.start
        if start is None or "library" in self.author.context.without:
            return
        told = "what the library makes of it"
        tuning = CountedMoves(self.author)
        points = (yield from tuning.tuned(_TUNING_SHARE)) if self.plan.tunes else {}
        if tuning.spent_s > self.author.context.opened_s:
            recipe = tuning.busy(tuple(Choice(pattern=id, point=point) for id, point in points.items()))
            event = yield from self.author.move(Compose(recipe=recipe))
            assert isinstance(event.outcome, Candidate)
            start, told = event.outcome, f"{told}, tuned"
        self.seen.add(start.id)
        passed = yield from self.author.tried(start, told)
        if isinstance(passed, Passed):
            self.best = self.current = passed
        else:
            self.ledger.append(f"{told}: refused: {passed.reason}: {passed.summary}")

    def _enough(self) -> str:
        if over := self.author.spending.over():
            return over
        enough = self.plan.enough_of_floor
        if enough is not None and self.best is not None and self.best.floor_share >= enough:
            return f"at {self.best.floor_share:.0%} of the floor"
        return f"{self.unpaid} steps in a row brought nothing" if self.unpaid >= self.plan.patience else ""

    def _step(self, step: int) -> Steps[None]:
        base = self.current
        tried = self.ledger if self.plan.remembers else []  # as prompts tell it
        if base is None:
            written = yield from self.author.written(
                None, f"step {step}: write", "write", ledger=tried, near=self._near()
            )
        else:
            seen = yield from self._evidence(base)
            written = yield from self.author.written(
                base.candidate, f"step {step}: {self.stage}", "step", stage=self.stage, ledger=tried,
                measured=measured(base.timed), evidence=seen, near=self._near(),
                **shown(base.candidate),
            )  # fmt: skip
        passed = yield from self._passed(step, written)
        self._settle(written, base, passed)

    def _passed(self, step: int, written: WrittenReply) -> Steps[Passed | str]:
        """What comes of a reply, mended where the judge refuses it; a text says why nothing did."""
        candidate = written.candidate
        if candidate is None:
            return f"no use: {written.problem}"
        mended: list[str] = []
        finding = ""
        for fix in range(self.plan.fixes + 1):
            if candidate.id in self.seen:
                return "was tried before, letter for letter"
            self.seen.add(candidate.id)
            outcome = yield from self.author.tried(candidate, f"step {step}: {written.idea}")
            if isinstance(outcome, Passed):
                return outcome
            told = f"refused at {outcome.stage}: {outcome.reason}: {outcome.summary}"
            if fix == self.plan.fixes or self.author.spending.over():
                return f"{told}; {fix} attempts to mend it failed"
            finding = (yield from self._watched(candidate, outcome)) if fix == 0 else finding
            found = yield from self.author.written(
                candidate, f"step {step}: mend {fix + 1}", "mend", finding=finding, idea=written.idea, mended=mended,
                files=shown(candidate)["files"], **refusal(outcome),
            )  # fmt: skip
            mended.append(f"{found.idea}: the version before it was {told}")
            if found.candidate is None:
                return f"{told}; the model did not mend it: {found.problem}"
            candidate = found.candidate
        raise AssertionError("unreachable")

    def _watched(self, candidate: Candidate, refused: Failure) -> Steps[str]:
        """What a tool finds that watches the memory of a refused candidate, once for each step; "" where none runs."""
        said = f"{refused.reason} {refused.summary} {refused.excerpt}"
        if not (self.plan.remembers and self.author.context.sanitize and _OF_MEMORY.search(said)):
            return ""
        event = yield from self.author.move(Sanitize(what=candidate))
        found = event.outcome
        return f"{found.summary}\n{found.excerpt}".strip() if isinstance(found, Failure) else ""

    def _settle(self, written: WrittenReply, base: Passed | None, passed: Passed | str) -> None:
        """Accept or take back, and write down what the idea did."""
        predicted = f" (predicted: {written.prediction})" if written.prediction else ""
        line = f"{written.idea}{predicted}: "
        if isinstance(passed, str):
            self.unpaid += 1
            self.ledger.append(line + passed)
            return
        gained = base is None or faster(passed.timed, base.timed)
        if gained if self.plan.keep_best else self.best is None or passed.ns < self.best.ns:
            self.best = passed
        if gained or not self.plan.keep_best:
            self.current = passed
        if gained:
            self.unpaid = self.within_noise = 0
        else:
            self.unpaid += 1
            self.within_noise += 1
        was = f"{microseconds(base.ns)} -> " if base is not None else ""
        fate = "accepted" if gained else "taken back, not faster beyond noise" if self.plan.keep_best else "not faster"
        self.ledger.append(f"{line}{was}{microseconds(passed.ns)}, {fate}")

    def _turn_knobs(self) -> Steps[None]:
        """Each knob of the best in turn, without the model; what is faster beyond noise stays."""
        tries = 0
        for knob in knobs_of(self.best.candidate) if self.best is not None else ():
            for value in knob.others:
                if self.best is None or tries == MOST_TURNS_OF_KNOBS or self._enough():
                    return
                candidate = turned(self.best.candidate, knob, value)
                if candidate.id in self.seen:
                    continue
                self.seen.add(candidate.id)
                tries += 1
                outcome = yield from self.author.tried(candidate, f"knob {knob.name} = {value}")
                gained = isinstance(outcome, Passed) and faster(outcome.timed, self.best.timed)
                told = microseconds(outcome.ns) if isinstance(outcome, Passed) else outcome.reason
                self.ledger.append(f"knob {knob.name} = {value}: {told}, {'accepted' if gained else 'taken back'}")
                if gained and isinstance(outcome, Passed):
                    self.best = self.current = outcome
                    self.unpaid = 0

    def _near(self) -> tuple[SourceFile, ...]:
        """The skeletons that a prompt carries: while structure is at stake, and none in the loop as published."""
        return self.author.context.near if self.plan.keep_best and self.stage == "structure" else ()

    def _evidence(self, base: Passed) -> Steps[list[str]]:
        """What measurements say of what the step starts from, once they are due: the judge's, and a profile, which is
        taken once of each candidate."""
        if self.stage != "profile":
            return []
        if base.candidate.id not in self.profiles:
            event = yield from self.author.move(Inspect(what=base.candidate))
            self.profiles[base.candidate.id] = profile(event.outcome)
        return [*evidence(base.timed), *self.profiles[base.candidate.id]]
