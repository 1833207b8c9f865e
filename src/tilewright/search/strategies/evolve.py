"""robust-kbench's search (arXiv 2509.14279): an archive of kernels, and generations that are proposed from several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from ...facts.candidate import Candidate
from ...facts.dialogue import AS_IT_IS, Effort, Message, Sampling
from ...facts.move import Ask, Inspect, Verify
from ...facts.outcome import Failure, Inspected
from ...facts.run import SearchContext
from ...facts.verdict import Verified
from .archive import Archive, Member, member
from .asking import Author, Passed, WrittenReply, read, shown
from .comparing import apart, compared
from .lessons import Lessons, read_review
from .telling import evidence, measured, microseconds, profile_lines, refusal
from .tooling import continued
from .tuning import Steps
from .verdicts import read_risk

PARTS = (
    "library",  # begins with what the library alone makes of the module
    "repair",  # what was refused is mended
    "islands",  # several populations, which exchange their fastest
    "novelty",  # what is unlike the others is kept, and drawn as a parent, more often
    "context",  # other kernels with their times stand in the prompts
    "recombination",  # one proposal of a generation is made of two kernels
    "sampling",  # temperature, effort and the model of an ensemble are drawn for each prompt
    "parallel",  # a generation's prompts are put together; else one by one, each told of those before it
    "verifiers",  # what a tool proves wrong before it is judged is not judged
    "verdicts",  # a model says of each kernel how likely it is to fail, and the least likely are judged
    "profile",  # a profile of the fastest, which a model condenses to three recommendations
    "summary",  # a model condenses what was tried, from generation to generation
    "tools",  # where they were asked for: a model may call tools before it replies
    "lessons",  # what earlier runs on such work have learnt stands in the prompts
    "table",  # kernels that models wrote in earlier runs compete
)
TEMPERATURES = (0.3, 0.7, 1.0)
EFFORTS: tuple[Effort, ...] = ("low", "medium", "high")
Kind = Literal["write", "mend", "change", "join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolvePlan:
    """Sizes of a search. `judged`: of a generation's proposals at most so many; `fixes`: how often a version that is
    refused is mended; `patience`: generations in a row that brought nothing, after which it stops; `off`: the parts
    that are not this search's."""

    proposals: int = 4
    judged: int = 4
    generations: int = 40
    islands: int = 2
    size: int = 6
    company: int = 2
    migration: int = 3
    fixes: int = 4
    patience: int = 6
    enough_of_floor: float = 0.95
    decides: bool = True  # what two judgements leave open is timed in turns
    off: tuple[str, ...] = ("verdicts",)


OURS = EvolvePlan()
# As published, as far as we know it: nothing of the library's, twice as many proposals as are judged, and a model that
# verifies them first.
PAPER = EvolvePlan(proposals=8, judged=4, decides=False, off=("library", "table"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """A version that the judge refused, and what was tried on it in vain."""

    candidate: Candidate
    failure: Failure
    idea: str
    island: int
    mended: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A prompt of a generation. `base`: what the reply's edits are of."""

    kind: Kind
    island: int
    messages: tuple[Message, ...]
    base: Candidate | None
    parent: Member | None = None
    mending: _Refused | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposal:
    draft: _Draft
    written: WrittenReply
    why: str

    @property
    def line(self) -> str:
        """The beginning of what the search remembers of it."""
        predicted = f" (predicted: {self.written.prediction})" if self.written.prediction else ""
        was = f"{microseconds(self.draft.parent.passed.ns)} -> " if self.draft.parent is not None else ""
        return f"{self.written.idea}{predicted}: {was}"


_New = tuple[_Proposal, Candidate]


def evolve(context: SearchContext) -> Steps[None]:
    """Moves: those of `Author.calls`; `Try` of what the library alone makes of the module; then for each generation
    `Inspect` of a new fastest kernel, the `Ask`s of all proposals and of a review together, the `Verify`s of all
    that came of them together, then their `Try`s; `Stop` with the best, at 95% of the floor, on a budget, or where
    nothing helps any more.

    An island without a kernel is written to anew, and mended until one passes. `context.without` names parts that
    are switched off (PARTS)."""
    yield from _searched(context, OURS)


def evolve_paper(context: SearchContext) -> Steps[None]:
    """The search with a model's verdicts on each proposal before it is judged, to compare with: see PAPER."""
    yield from _searched(context, PAPER)


def _searched(context: SearchContext, plan: EvolvePlan) -> Steps[None]:
    search = _Search(context, plan)
    if "library" in search.parts:
        yield from search.author.calls()
    why = yield from search.run()
    best = search.best
    yield from search.author.ended(best.passed if best else None, why)


class _Population:
    """The kernels of a search, and what it has learnt of them. `refused` waits to be mended."""

    def __init__(self, context: SearchContext, plan: EvolvePlan) -> None:
        self.author = Author(context)
        self.plan = plan
        self.parts = frozenset(PARTS) - frozenset((*plan.off, *context.without))
        islands = plan.islands if "islands" in self.parts else 1
        self.archive = Archive(islands, size=plan.size * plan.islands // islands, novelty="novelty" in self.parts)
        self.lessons = Lessons()
        self.best: Member | None = None
        self.profile: Inspected | None = None
        self.seen: set[str] = set()
        self.refused: list[_Refused] = []
        self.dice = Random(context.seed)

    def overtakes(self, passed: Passed) -> Steps[bool]:
        """Whether it is the fastest so far: what two judgements leave open is timed in turns."""
        best = self.best.passed if self.best is not None else None
        if best is None or (passed.timed.faster_than("eager") and not best.timed.faster_than("eager")):
            return True
        found = (yield from compared(self.author, passed, best)) if self.plan.decides else apart(passed, best)
        return found.standing == "faster"

    def accept(self, passed: Passed, idea: str, *, island: int, born: int, overtakes: bool = True) -> str:
        """What becomes of a kernel that is right."""
        new = member(passed, idea=idea, born=born)
        stays = self.archive.admit(new, island)
        if not overtakes:
            return "kept" if stays else "not kept: others like it are faster"
        self.best, self.profile = new, None
        self.lessons.outdate()
        return "the fastest so far"

    def refuse(self, proposal: _Proposal, failure: Failure) -> None:
        told = f"refused at {failure.stage}: {failure.reason}: {failure.summary}"
        self.lessons.add(proposal.line + told)
        candidate, before = proposal.written.candidate, proposal.draft.mending
        mended = (*before.mended, f"{proposal.written.idea}: it was {told}") if before else ()
        if candidate is not None and "repair" in self.parts and len(mended) < self.plan.fixes:
            idea = before.idea if before else proposal.written.idea
            self.refused.append(
                _Refused(candidate=candidate, failure=failure, idea=idea, island=proposal.draft.island, mended=mended)
            )


class _Drafting(_Population):
    """What is asked of models in a generation."""

    def proposals(self, generation: int) -> Steps[list[_Proposal]]:
        """A generation's, from prompts that are put together, or in turn; with them goes the review."""
        memory = self.author.spending.calls_left()
        count = self.plan.proposals if memory is None else min(self.plan.proposals, memory)
        rounds = [list(range(count))] if "parallel" in self.parts else [[slot] for slot in range(count)]
        found: list[_Proposal] = []
        for slots in rounds:
            if found and self.author.spending.over():
                break
            drafts = [self._draft(slot, generation, last=count - 1, others=found) for slot in slots]
            whys = [f"generation {generation}.{slot + 1}" for slot in slots]
            asks = [
                self.author.ask_of(d.messages, f"{why}: {d.kind}", sampling=self._sampling())
                for d, why in zip(drafts, whys, strict=True)
            ]
            review = self._review(generation) if not found and (memory is None or memory > count) else ()
            known = len(self.lessons.lines)
            replies = yield from self.author.replies([*asks, *review])
            if review:
                self.lessons.settle(read_review(replies[-1].text), lines=known)
            for draft, reply, why in zip(drafts, replies, whys, strict=False):
                said, _ = yield from continued(self.author, draft.messages, reply, why=why, base=draft.base)
                first = read(said, draft.base)
                found += [_Proposal(draft=draft, written=w, why=why) for w in (first, *first.others)]
        return found

    def _sampling(self) -> Sampling:
        if "sampling" not in self.parts:
            return AS_IT_IS
        return Sampling(
            temperature=self.dice.choice(TEMPERATURES), effort=self.dice.choice(EFFORTS), member=self.dice.randrange(60)
        )

    def _draft(self, slot: int, generation: int, *, last: int, others: Sequence[_Proposal]) -> _Draft:
        """Islands in turn. Each has one proposal for what was refused there, all of them while nothing lives there; the
        last of a generation joins two kernels."""
        island = (slot + generation) % len(self.archive.islands)
        home = self.archive.islands[island]
        waiting = next((r for r in self.refused if r.island == island), None)
        if waiting is not None and (not home or slot < len(self.archive.islands)):
            self.refused.remove(waiting)
            return self._mend(waiting)
        if not home:
            near, ledger = self.author.context.near, self.lessons.recent
            return _Draft(
                kind="write", island=island, base=None, messages=self.author.first("write", near=near, ledger=ledger)
            )
        parent = self.archive.parent(island, self.dice)
        joins = "recombination" in self.parts and slot == last and generation > 1
        partner = next(iter(self.archive.company(parent, 2)[-1:] if joins else ()), None)
        return self._change(parent, partner, island=island, others=[p.written.idea for p in others])

    def _mend(self, refused: _Refused) -> _Draft:
        messages = self.author.first(
            "mend", idea=refused.idea, mended=refused.mended, files=shown(refused.candidate)["files"],
            **refusal(refused.failure),
        )  # fmt: skip
        return _Draft(kind="mend", island=refused.island, messages=messages, base=refused.candidate, mending=refused)

    def _change(self, parent: Member, partner: Member | None, *, island: int, others: list[str]) -> _Draft:
        company = self.archive.company(parent, self.plan.company) if "context" in self.parts else ()
        timed = parent.passed.timed
        told = evidence(timed)
        if self.profile is not None and parent is self.best:
            told += profile_lines(self.profile, most=3)
        messages = self.author.first(
            "proposal", measured=measured(timed), evidence=told, others=others, ledger=self.lessons.recent,
            near=self.author.context.near if parent.born == 0 else (), join=_beside(partner) if partner else None,
            company=[_beside(m) for m in company if m is not partner], lessons=self.lessons.review.lessons,
            recommendations=self.lessons.review.recommendations, **shown(parent.passed.candidate),
        )  # fmt: skip
        kind: Kind = "join" if partner else "change"
        return _Draft(kind=kind, island=island, messages=messages, base=parent.passed.candidate, parent=parent)

    def _review(self, generation: int) -> tuple[Ask, ...]:
        """One prompt for both: what the tries have taught, and what a new profile recommends; () where neither is
        due."""
        best = self.best
        ledger = self.lessons.recent if "summary" in self.parts else []
        profile = self.profile if not self.lessons.review.recommendations else None
        if best is None or not (ledger or profile):
            return ()
        messages = self.author.first(
            "review", idea=best.idea, measured=measured(best.passed.timed), files=_files(best), ledger=ledger,
            lessons=self.lessons.review.lessons, profile=profile_lines(profile) if profile else (),
            wants_lessons=bool(ledger), wants_recommendations=profile is not None,
        )  # fmt: skip
        return (self.author.ask_of(messages, f"generation {generation}: review", system="review_system"),)


class _Search(_Drafting):
    """`unpaid` counts generations that brought nothing."""

    def __init__(self, context: SearchContext, plan: EvolvePlan) -> None:
        super().__init__(context, plan)
        self.unpaid = 0
        self.profiled: set[str] = set()

    def run(self) -> Steps[str]:
        """Returns why it ended."""
        yield from self._library()
        for generation in range(1, self.plan.generations + 1):
            if reason := self._enough():
                return reason
            self.dice = Random(f"{self.author.context.seed}:{generation}")
            best = self.best
            yield from self._profiled()
            proposals = yield from self.proposals(generation)
            yield from self._judged(proposals, generation)
            self.unpaid = self.unpaid + 1 if self.best is best else 0
            if generation % self.plan.migration == 0:
                self.archive.migrate()
        return self._enough() or f"{self.plan.generations} generations"

    def _enough(self) -> str:
        if over := self.author.spending.over():
            return over
        if self.best is not None and self.best.passed.floor_share >= self.plan.enough_of_floor:
            return f"at {self.best.passed.floor_share:.0%} of the floor"
        return f"{self.unpaid} generations in a row brought nothing" if self.unpaid >= self.plan.patience else ""

    def _library(self) -> Steps[None]:
        before = self.author.before
        if before is not None:
            self.seen.add(before.candidate.id)
            self.accept(before, "what a model wrote before", island=0, born=0)
        start = self.author.context.start
        if start is None or "library" not in self.parts:
            return
        idea = "what the library makes of it"
        self.seen.add(start.id)
        outcome = yield from self.author.tried(start, idea)
        if isinstance(outcome, Failure):
            self.lessons.add(f"{idea}: refused: {outcome.reason}: {outcome.summary}")
            return
        self.accept(outcome, idea, island=0, born=0)

    def _profiled(self) -> Steps[None]:
        """Profile the fastest, unless that was done or can't be."""
        best = self.best
        if best is None or "profile" not in self.parts or best.passed.candidate.id in self.profiled:
            return
        self.profiled.add(best.passed.candidate.id)
        event = yield from self.author.move(Inspect(what=best.passed.candidate))
        self.profile = event.outcome if isinstance(event.outcome, Inspected) else None

    def _judged(self, proposals: Sequence[_Proposal], generation: int) -> Steps[None]:
        """Try what is new, and settle each."""
        new: list[_New] = []
        for proposal in proposals:
            candidate = proposal.written.candidate
            if candidate is None:
                self.lessons.add(f"{proposal.line}no use: {proposal.written.problem}")
            elif candidate.id in self.seen:
                self.lessons.add(f"{proposal.line}was tried before, letter for letter")
            else:
                self.seen.add(candidate.id)
                new.append((proposal, candidate))
        if "verifiers" in self.parts:
            new = yield from self._verified(new)
        if "verdicts" in self.parts:
            new = yield from self._ranked(new)
        for proposal, _ in new[self.plan.judged :]:
            self.lessons.add(f"{proposal.line}not judged: others were likelier to be right")
        new = new[: self.plan.judged]
        outcomes = yield from self.author.all_tried([(c, f"{p.why}: {p.written.idea}") for p, c in new])
        for (proposal, _), outcome in zip(new, outcomes, strict=False):
            if isinstance(outcome, Passed):
                overtakes = yield from self.overtakes(outcome)
                fate = self.accept(
                    outcome, proposal.written.idea, island=proposal.draft.island, born=generation, overtakes=overtakes
                )
                self.lessons.add(f"{proposal.line}{microseconds(outcome.ns)}, {fate}")
            else:
                self.refuse(proposal, outcome)
        self.refused = self.refused[-self.plan.proposals :]

    def _verified(self, new: list[_New]) -> Steps[list[_New]]:
        """Without those of which a tool proves a fault; the least suspected first."""
        events = yield from self.author.moves([Verify(what=candidate) for _, candidate in new])
        ranked: list[tuple[int, _New]] = []
        for one, event in zip(new, events, strict=True):
            assert isinstance(event.outcome, Verified)
            if (fault := event.outcome.proven) is not None:
                self.refuse(one[0], Failure(stage="verify", reason=fault.verifier, summary=fault.why))
            else:
                ranked.append((len(event.outcome.suspected), one))
        return [one for _, one in sorted(ranked, key=lambda pair: pair[0])]

    def _ranked(self, new: list[_New]) -> Steps[list[_New]]:
        """Those first that a model takes for right: it ranks, and is believed in nothing else."""
        memory = self.author.spending.calls_left()
        if len(new) <= self.plan.judged or (memory is not None and memory < len(new)):
            return new
        asks = [
            self.author.ask_of(
                self.author.first("verdict", idea=proposal.written.idea, files=shown(candidate)["files"]),
                f"{proposal.why}: verdict", system="verdict_system",
            )
            for proposal, candidate in new
        ]  # fmt: skip
        replies = yield from self.author.replies(asks)
        risks = [read_risk(reply.text) for reply in replies]
        return [one for _, one in sorted(zip(risks, new, strict=True), key=lambda pair: pair[0])]


def _files(one: Member) -> Any:
    return shown(one.passed.candidate)["files"]


def _beside(one: Member) -> dict[str, Any]:
    """What prompts show of a kernel beside another."""
    return {"idea": one.idea, "measured": measured(one.passed.timed), "files": _files(one)}
