"""CuTeGen's loop (arXiv 2604.01489): one kernel that evolves, structured debugging, stages that begin on conditions."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ...facts.candidate import Candidate, SourceFile
from ...facts.dialogue import ToolAnswer
from ...facts.move import CallTool, Compose, Inspect, Sanitize
from ...facts.outcome import Failure
from ...facts.pattern import Choice
from ...facts.run import SearchContext
from .asking import Author, CountedMoves, Passed, WrittenReply, shown
from .comparing import HeadToHead, apart, compared, difference, fastest_in_turns
from .telling import evidence, measured, microseconds, profile, refusal, slower_than_eager
from .tuning import Steps
from .turning import of_the_library, of_the_text

_MOST_REMARKS = 2000  # characters
MOST_TURNS_OF_KNOBS = 8  # a judgement each
# What reading or writing where it must not looks like, in a reason or in what a driver says.
_OF_MEMORY = re.compile(
    r"crashed|broke_the_cell|illegal memory|misaligned address|CUDA error|SIGSEGV|SIGBUS|elements are NaN"
)
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
    structure_patience: int = 2  # steps that were decided and no gain, after which structure has stopped paying
    patience: int = 6  # steps in a row that brought nothing, after which the stage ends, and the last one the search
    # What two judgements leave open is timed in turns, and decided before it counts; no search ends without a profile;
    # before the end all knobs are turned, and the best is held against those before it.
    decides: bool = True


# What can be switched off: what the library makes of the module; its tuning alone; tools, where they were asked for;
# what earlier runs have learnt; kernels that models wrote in them.
PARTS = ("library", "tuning", "tools", "lessons", "table")

# Journals of the first edition replay by the rules of then.
OURS = CutegenPlan(steps=60, fixes=5, rounds=1, keep_best=True, evidence_from=None, enough_of_floor=0.95)
FIRST_EDITION = replace(OURS, decides=False)
# As published: ten steps, profiler from the seventh, five fixes, three rounds, always from the last passing kernel,
# without a memory of what was tried.
PAPER = CutegenPlan(
    steps=10, fixes=5, rounds=3, keep_best=False, evidence_from=7, enough_of_floor=None, remembers=False, patience=10,
    decides=False,
)  # fmt: skip


def cutegen(context: SearchContext, *, tunes: bool = True) -> Steps[None]:
    """Moves: those of `Author.calls`; `Tune` for each of the library's patterns that has a choice, `Compose` and
    `Try` of what they make of the module; then for each step `Ask` (again once, where nothing came of it) and
    `Try`, with at most five `Ask`s and `Try`s to mend what was refused; once structure has stopped paying, `Try`
    for each value of a knob, and `Inspect` of what a step starts from; `Stop` with the best, at 95% of the floor,
    on a budget, or where nothing helps any more, after the knobs that are left. What two judgements can't tell apart
    goes through `Interleave`. Without `tunes`, or its part "tuning", the library's points are
    taken as they are; without its part "library" the loop begins with nothing."""
    tunes = tunes and "tuning" not in context.without
    plan = OURS if context.edition >= 2 else FIRST_EDITION
    yield from _loop(context, plan if tunes else replace(plan, tunes=False))


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
        loop = KernelRound(author, plan)
        why = yield from loop.run()
        if plan.decides:
            yield from loop.settle_at_last()
        if loop.best is not None and (best is None or loop.best.ns < best.ns):
            best = loop.best
        if author.spending.over():
            break
    yield from author.ended(best, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """A version that was right and no gain: what it changed, and what the compiler said of it; None: not asked yet."""

    candidate: Candidate
    told: str
    remarks: str | None = None


class _Kernel:
    """One evolving kernel: `best` is the fastest that passed, `current` what the next step starts from, `accepted` the
    bests one after another."""

    def __init__(self, author: Author, plan: CutegenPlan) -> None:
        self.author = author
        self.plan = plan
        self.best: Passed | None = None
        self.current: Passed | None = None
        self.accepted: list[Passed] = []
        self.ledger: list[str] = []
        self.lost: _Lost | None = None
        self.seen: set[str] = set()
        self.stage = "structure"
        self.unpaid = 0  # steps in a row that brought nothing
        self.stalled = 0  # of these, such as show that structure has stopped paying

    def take(self, passed: Passed) -> None:
        self.best = passed
        self.accepted.append(passed)

    def take_before(self) -> None:
        """What a model wrote for this problem before, where that is faster than what there is."""
        before = self.author.before
        if before is not None and (self.best is None or apart(before, self.best).standing == "faster"):
            self.seen.add(before.candidate.id)
            self.ledger.append(f"what a model wrote before: {microseconds(before.ns)}, accepted")
            self.take(before)
            self.current = before

    def settle(self, written: WrittenReply, base: Passed | None, passed: Passed | str) -> Steps[None]:
        """Accept or take back, and write down what the idea did."""
        predicted = f" (predicted: {written.prediction})" if written.prediction else ""
        line = f"{written.idea}{predicted}: "
        if isinstance(passed, str):
            self.unpaid += 1
            self.ledger.append(line + passed)
            return
        found: HeadToHead | None = None
        if base is not None:
            found = (yield from compared(self.author, passed, base)) if self.plan.decides else apart(passed, base)
        gained = found is None or found.standing == "faster"
        if gained if self.plan.keep_best else self.best is None or passed.ns < self.best.ns:
            self.take(passed)
        if gained or not self.plan.keep_best:
            self.current = passed
        if gained:
            self.unpaid = self.stalled = 0
            self.lost = None  # it was a change of another kernel
        else:
            self.unpaid += 1
            self.stalled += not self.plan.decides or (found is not None and found.is_near)
        if found is not None and not gained and base is not None:
            told = f"{written.idea}: {found.told}\n{difference(base.candidate, passed.candidate)}"
            self.lost = _Lost(candidate=passed.candidate, told=told)
        self.ledger.append(f"{line}{self._fate(base, passed, found)}")

    def told_of_loss(self) -> Steps[str]:
        """What the last that was no gain changed; on a CPU with the compiler's remarks on it, which are asked for once,
        unless the model can ask for them itself; "" where there is none. Moves: `CallTool`."""
        if self.lost is None or not self.plan.remembers:
            return ""
        context = self.author.context
        on_cpu = context.problem.target == "cpu"  # on a GPU it would hold the device for as long as a judgement
        if self.lost.remarks is None and self.plan.decides and on_cpu and not context.tools:
            event = yield from self.author.move(CallTool(tool="compile", candidates=(self.lost.candidate,)))
            said = event.outcome.text if isinstance(event.outcome, ToolAnswer) else ""
            self.lost = replace(self.lost, remarks=said[:_MOST_REMARKS])
        remarks = f"\nThe compiler on it: {self.lost.remarks}" if self.lost.remarks else ""
        return f"{self.lost.told}{remarks}"

    def _fate(self, base: Passed | None, passed: Passed, found: HeadToHead | None) -> str:
        if base is None or found is None:
            return f"{microseconds(passed.ns)}, accepted"
        kept = "accepted" if found.standing == "faster" else "taken back" if self.plan.keep_best else "not faster"
        return f"{microseconds(base.ns)} -> {microseconds(passed.ns)}, {kept} ({found.told})"

    def turn_knobs(self, *, at_last: bool = False) -> Steps[None]:
        """Each knob of the best in turn, without the model; what is faster beyond noise stays. `at_last`: those of the
        library's kernels in it, too; then no model is asked any more, and its budget does not count."""
        if self.best is None:
            return
        turns = [*of_the_text(self.best.candidate)]
        turns += of_the_library(self.author.context, self.best.candidate) if at_last else ()
        tries = 0
        for turn in turns:
            over = self.author.spending.over(asking=not at_last) or self.at_floor
            stalled = not self.plan.decides and self.unpaid >= self.plan.patience
            if tries == MOST_TURNS_OF_KNOBS or over or stalled:
                return
            candidate = turn.of(self.best.candidate)
            if candidate.id in self.seen:
                continue
            self.seen.add(candidate.id)
            tries += 1
            yield from self._turn(turn.name, candidate, self.best)

    def _turn(self, name: str, candidate: Candidate, best: Passed) -> Steps[None]:
        outcome = yield from self.author.tried(candidate, name)
        if not isinstance(outcome, Passed):
            self.ledger.append(f"{name}: {outcome.reason}, taken back")
            return
        found = (yield from compared(self.author, outcome, best)) if self.plan.decides else apart(outcome, best)
        gained = found.standing == "faster"
        self.ledger.append(f"{name}: {microseconds(outcome.ns)}, {'accepted' if gained else 'taken back'}")
        if gained:
            self.take(outcome)
            self.current, self.lost = outcome, None
            self.unpaid = 0

    @property
    def at_floor(self) -> str:
        """Why nothing more can be won; "" where something can."""
        enough = self.plan.enough_of_floor
        if enough is not None and self.best is not None and self.best.floor_share >= enough:
            return f"at {self.best.floor_share:.0%} of the floor"
        return ""

    def settle_at_last(self) -> Steps[None]:
        """Before the end: the knobs that are left, and the best against those before it."""
        yield from self.turn_knobs(at_last=True)
        if self.accepted:
            self.best = yield from fastest_in_turns(self.author, self.accepted)


class KernelRound(_Kernel):
    """The kernel's way, step by step."""

    def __init__(self, author: Author, plan: CutegenPlan) -> None:
        super().__init__(author, plan)
        self.judged: dict[str, Passed | Failure] = {}  # of the last reply, by the candidate's id
        self.profiles: dict[str, list[str]] = {}  # what was seen of a candidate, by its id; of the module by ""

    def run(self) -> Steps[str]:
        """Returns why it ended."""
        if self.plan.keep_best:
            yield from self._begin()
            self.take_before()
        for step in range(1, self.plan.steps + 1):
            if reason := self._enough():
                return reason
            yield from self._step(step)
            if self.stage == "structure" and self._structure_is_over(step):
                self.stage = "profile"
                self.unpaid = 0 if self.plan.decides else self.unpaid
                if self.plan.evidence_from is None:
                    yield from self.turn_knobs()
        return self._enough() or f"{self.plan.steps} steps"

    def _structure_is_over(self, step: int) -> bool:
        if self.plan.evidence_from is not None:
            return step + 1 >= self.plan.evidence_from
        without_end = self.plan.decides and self.unpaid >= self.plan.patience
        return self.stalled >= self.plan.structure_patience or without_end

    def _begin(self) -> Steps[None]:
        """With what the library makes of the module, tuned, where it makes anything; with the module as it is where
        that is faster."""
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
        yield from self._start_from(start, told)
        slow = slower_than_eager(self.best.timed) if self.best is not None and self.plan.decides else ""
        if slow:
            self.ledger.append(f"{told}: {slow}; the plain module is the better start")
            event = yield from self.author.move(Compose(recipe=()))
            if isinstance(event.outcome, Candidate):
                yield from self._start_from(event.outcome, "the plain module")

    def _start_from(self, start: Candidate, told: str) -> Steps[None]:
        self.seen.add(start.id)
        passed = yield from self.author.tried(start, told)
        if not isinstance(passed, Passed):
            self.ledger.append(f"{told}: refused: {passed.reason}: {passed.summary}")
        elif self.best is None or apart(passed, self.best).standing == "faster":
            self.take(passed)
            self.current = passed

    def _enough(self) -> str:
        if over := self.author.spending.over() or self.at_floor:
            return over
        return f"{self.unpaid} steps in a row brought nothing" if self.unpaid >= self.plan.patience else ""

    def _step(self, step: int) -> Steps[None]:
        base = self.current
        tried = self.ledger if self.plan.remembers else []  # as prompts tell it
        seen = yield from self._evidence(base)
        if base is None:
            written = yield from self.author.written(
                None, f"step {step}: write", "write", ledger=tried, near=self._near(), evidence=seen
            )
        else:
            lost = yield from self.told_of_loss()
            written = yield from self.author.written(
                base.candidate, f"step {step}: {self.stage}", "step", stage=self.stage, ledger=tried,
                measured=measured(base.timed), evidence=seen, near=self._near(),
                lost=lost, **shown(base.candidate),
            )  # fmt: skip
        written = yield from self.fastest_of(step, written, base)
        passed = yield from self._passed(step, written)
        yield from self.settle(written, base, passed)

    def fastest_of(self, step: int, written: WrittenReply, base: Passed | None) -> Steps[WrittenReply]:
        """Of several candidates in a reply, which are judged together, the fastest; the first where the judge takes
        none. What it has judged here it is not asked again."""
        if not written.others:
            return written
        new = {w.candidate.id: w for w in (written, *written.others) if w.candidate and w.candidate.id not in self.seen}
        tries = [(w.candidate, f"step {step}: {w.idea}") for w in new.values() if w.candidate is not None]
        outcomes = yield from self.author.all_tried(tries)
        self.judged = {c.id: outcome for (c, _), outcome in zip(tries, outcomes, strict=False)}
        passed = {id: o for id, o in self.judged.items() if isinstance(o, Passed)}
        chosen = min(passed, key=lambda id: passed[id].ns, default=next(iter(self.judged), ""))
        for id, outcome in self.judged.items():
            self.seen.add(id)
            if id != chosen:
                told = (
                    microseconds(outcome.ns)
                    if isinstance(outcome, Passed)
                    else f"refused: {outcome.reason}: {outcome.summary}"
                )
                self.ledger.append(f"{new[id].idea}: {told}, beside {new[chosen].idea}")
        self.seen.discard(chosen)
        return new.get(chosen, written)

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
            outcome = self.judged.pop(candidate.id, None) or (
                yield from self.author.tried(candidate, f"step {step}: {written.idea}")
            )
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

    def _near(self) -> tuple[SourceFile, ...]:
        """The skeletons that a prompt carries: while structure is at stake, later those that lie in the kernel and may
        be edited; none in the loop as published."""
        near = self.author.context.near if self.plan.keep_best else ()
        if self.stage == "structure":
            return near
        beside = {f.path for f in self.current.candidate.files} if self.current and self.plan.decides else set()
        return tuple(file for file in near if file.path in beside)

    def _evidence(self, base: Passed | None) -> Steps[list[str]]:
        """What measurements say of what the step starts from, once they are due: the judge's, and a profile, which is
        taken once of each candidate; of the module as it is, while nothing passes."""
        if self.stage != "profile" or (base is None and not self.plan.decides):
            return []
        id = base.candidate.id if base is not None else ""
        if id not in self.profiles:
            event = yield from self.author.move(Inspect(what=base.candidate if base is not None else None))
            self.profiles[id] = profile(event.outcome)
        return [*(evidence(base.timed) if base is not None else ()), *self.profiles[id]]
