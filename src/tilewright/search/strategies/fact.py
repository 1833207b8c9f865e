"""FACT's way: what can win most first, each pattern solved as a problem of its own, then all of them composed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...facts.candidate import Candidate
from ...facts.dialogue import Message, Reply
from ...facts.move import Ask, Enter, Try, Within
from ...facts.outcome import Timed
from ...facts.pattern import (
    INDUCTOR,
    Choice,
    Pattern,
    Recipe,
    Subproblem,
    Written,
    alike,
    subproblem_of,
    subproblems_written,
)
from ...facts.realised import Known
from ...facts.run import SearchContext
from ...facts.space import Point
from .asking import reply_of
from .catalog import catalog, nothing_matched
from .composing import Composing
from .cutegen import cutegen
from .handing_over import handed_over, nothing_accepted
from .proposing import Proposal, asked, gain_of, inspection, read, told_why
from .rivals import clash, turned_alike, with_rivals
from .tuning import Steps
from .within import Solution, solution_of, solved_within

PARTS = (  # what can be switched off
    "table",  # what was realised before
    "alone",  # each pattern solved by itself; else all is realised where it stands
    "tuning",  # a skeleton's points are measured; else they are taken as foreseen or remembered
    "graphs",  # what is handed over must pay as a CUDA graph, too
)
LEAST_GAIN = 0.01  # share of the module's time: a pattern that could win less is realised untuned, and not by itself
LEAST_TO_ASK = 0.03  # and of what a tuned skeleton leaves above the floor: below that no model is asked
_SOLVING_SHARE, _TUNING_SHARE = 0.6, 0.8  # of the budget, until which that may begin
_ALL = 0.99  # of the module's time: a pattern that takes so much is the module


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A subproblem to be solved, and what it could win: the share of the module's time that its patterns' parts take
    above their floors; `share`: of what is left of the budget."""

    subproblem: Subproblem
    gain: float
    share: float
    pattern: Pattern | None
    known: Known | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A realisation with what it was measured to gain on the subproblem by itself, ns a call of the module."""

    choice: Choice
    gain_ns: float


def fact(context: SearchContext) -> Steps[None]:
    """Moves: `Try` what was handed over for this problem before, and `Stop` if it still pays. Else for each pattern,
    the one that can win most first: `Enter` it, unless what solves it is known, and within it `Try` what is known and
    doubted, or else the moves of `catalog`, then of `cutegen` where a model is at hand and enough is left above the
    floor; `Tune` in its place for what can't be run by itself; `Try` all together, the largest measured gain first
    where they overlap, then each rival in the place of what it overlaps with, and all but each; on a GPU `Capture` of
    the best; `Stop` with it, if it is faster than eager beyond noise, and the same as a CUDA graph. `context.without`
    names parts that are switched off (PARTS)."""
    search = _Fact(context)
    if not search.patterns and not any(w.points for w in search.libraries.values()):
        yield from nothing_accepted(context, nothing_matched(context))
        return
    again = yield from search.again()
    if again is not None:
        yield from handed_over(*again, context=context, why="as before", has_time=lambda: False)
        return
    early = yield from search.early()
    solved = yield from search.solved()
    choices = yield from search.choices(solved)
    first, rivals = _settled(search, choices)
    first = yield from turned_alike(search, (), search.busy(first))
    accepted = (yield from search.refined(first, early)) if first else early
    if accepted is not None or not first:
        accepted = yield from with_rivals(search, accepted, rivals)
    if accepted is None:
        yield from nothing_accepted(context, "the judge accepted none of the realisations")
        return
    best, timed = yield from search.pruned(*accepted)
    yield from handed_over(
        best, timed, context=context, recorded="graphs" in search.parts, has_time=lambda: search.has_time(1.0)
    )  # fmt: skip


class _Fact(Composing):
    def __init__(self, context: SearchContext) -> None:
        super().__init__(context)
        self.stands = {p.id: p for p in self.main}
        self.parts = frozenset(PARTS) - frozenset(context.without)
        self.known = {k.name: k for k in context.known} if "table" in self.parts else {}
        self.libraries = {c.pattern: c.written for c in context.libraries if c.written is not None}
        self._turns = 0

    def numbered(self, ask: Ask) -> Ask:
        turn, self._turns = self._turns, self._turns + 1
        return replace(ask, turn=turn)

    # ---- the whole of it, from before

    def again(self) -> Steps[tuple[Candidate | Recipe, Timed] | None]:
        """What was handed over for this problem before, if it still pays, and no model could go further now."""
        known = self.known.get("")
        if known is None or (self.context.model and not known.realised.model):
            return None
        what = known.realised.what
        if isinstance(what, tuple) and not _fits(self.context, what):
            return None
        event = yield from self.move(Try(what=what, why="what was handed over before"))
        timed = event.outcome
        return (what, timed) if isinstance(timed, Timed) and timed.faster_than("eager") else None

    # ---- each pattern by itself

    def targets(self, proposed: Sequence[Proposal]) -> Iterator[Target]:
        """What is worth solving by itself, what can win most first."""
        total_ns = sum(p.ns for p in self.context.parts)
        gains = {p.pattern: p.ns / total_ns * p.distance for p in self.context.parts if p.pattern in self.stands}
        worth = [(subproblem_of(self.stands[id]), gain) for id, gain in gains.items() if gain >= LEAST_GAIN]
        graph = self.context.cases[0].graph
        for called in subproblems_written(self.context.libraries):
            assert graph is not None
            gain = gain_of(self.context, graph, called.region)
            worth += [(called, gain)] if gain >= LEAST_GAIN else []
        worth = sorted([*worth, *((p.subproblem, p.gain) for p in proposed)], key=lambda pair: -pair[1])
        left = sum(gain for _, gain in worth)
        for subproblem, gain in worth:
            pattern, known = self.stands.get(subproblem.name), self.known.get(subproblem.name)
            yield Target(subproblem=subproblem, gain=gain, share=gain / left, pattern=pattern, known=known)
            left -= gain

    def proposed(self) -> Steps[tuple[Proposal, ...]]:
        """Further parts that the model thinks worth a kernel, having seen the graph; where some of its reply is not
        valid, it is told why, and asked once more."""
        graph = self.context.cases[0].graph
        if not self.context.model or not self.context.parts or graph is None or self.spending.over():
            return ()
        messages = inspection(self.context, graph)
        reply = yield from self._reply(messages, why="which further parts are worth a kernel?")
        first = read(reply.text, self.context, graph, least=LEAST_TO_ASK)
        if not first.problems or self.spending.over():
            return first.proposals
        messages = told_why(messages, reply.text, first)
        reply = yield from self._reply(messages, why="which further parts, mended?")
        second = read(reply.text, self.context, graph, least=LEAST_TO_ASK, before=first.proposals)
        return (*first.proposals, *second.proposals)

    def _reply(self, messages: tuple[Message, ...], *, why: str) -> Steps[Reply]:
        ask = asked(self.context, messages, turn=0, least=LEAST_TO_ASK, why=why)
        return reply_of((yield from self.move(self.numbered(ask))))

    def solved(self) -> Steps[dict[str, Solved | None]]:
        """By pattern, and by subproblem that a model proposed or a library makes, what was found for it; None: nothing
        that is right and no slower than torch. A pattern that could not be run by itself, could win too little or is
        the whole module is not among them."""
        if "alone" not in self.parts:
            return {name: _untried(self, name) for name in self.libraries}
        found: dict[str, Solved | None] = {}
        proposed = yield from self.proposed()
        for target in self.targets(proposed):
            if not self.has_time(_SOLVING_SHARE):
                break
            if _is_all(self.context, target):
                continue
            best, stands_alone = yield from self._solution(target)
            if best is not None and not best.slower:
                places = len(target.pattern.matches) if target.pattern is not None else 1
                found[target.subproblem.name] = Solved(
                    choice=self._choice(target, best), gain_ns=places * best.gained_ns
                )
            elif best is None and target.subproblem.name in self.libraries:
                found[target.subproblem.name] = _untried(self, target.subproblem.name)
            elif stands_alone:
                found[target.subproblem.name] = None
        return found

    def _solution(self, target: Target) -> Steps[tuple[Solution | None, bool]]:
        """The best that is known or found for a subproblem, and whether it could be run by itself: one that is then
        taken for another pattern says nothing of this one's points."""
        best = _trusted(target.known)
        was_asked = target.known is not None and target.known.realised.model != ""
        if best is not None and (was_asked or not self._worth_asking(target, best)):
            return best, True
        event = yield from self.move(Enter(subproblem=target.subproblem))
        if not isinstance(event.outcome, SearchContext):
            return best, False
        if best is None and target.known is not None:
            known = target.known
            best = yield from _tried(self, target, known.realised.what, why=f"known; {known.doubt}")
        library = self.libraries.get(target.subproblem.name)
        if best is None and library is not None:
            whose = "a library's call" if library.candidate.by == "library" else "what a model wrote before"
            best = yield from _tried(self, target, library.candidate, why=whose)
        is_itself = target.pattern is None or _is_found(target.pattern, event.outcome)
        if best is None and target.pattern is not None and is_itself:
            inside = self._given(event.outcome, target.share)
            best = yield from solved_within(target.subproblem, catalog(inside), move=self.move, ask=self.numbered)
            if best is not None and not _is_of(target.pattern, event.outcome, best.what):
                best, is_itself = None, False
        if self._worth_asking(target, best):
            inside = self._given(event.outcome, target.share)
            writing = cutegen(inside, tunes=False)
            other = yield from solved_within(target.subproblem, writing, move=self.move, ask=self.numbered)
            best = other if other is not None and (best is None or other.beats(best)) else best
        return best, is_itself or best is not None

    def _worth_asking(self, target: Target, best: Solution | None) -> bool:
        """Whether a model is at hand, and enough is left above the floor of a subproblem to ask it."""
        left = target.gain if best is None else target.gain * best.left
        may = self.has_time(_SOLVING_SHARE) and not self.spending.over()
        return bool(self.context.model) and left >= LEAST_TO_ASK and may

    def _given(self, inside: SearchContext, share: float) -> SearchContext:
        """A subproblem's problem with its share of what is left."""
        left_s = max(_SOLVING_SHARE * self.context.budget_s - self.spent_s, 0.0) if "tuning" in self.parts else 0.0
        return replace(
            inside, budget_s=share * left_s, limits=self.spending.left().share(share), model=self.context.model,
            libraries=(), inductor=(), opened_s=0.0,
        )  # fmt: skip

    def _choice(self, target: Target, solution: Solution) -> Choice:
        """The solution in the place of the subproblem."""
        name = target.subproblem.name
        if not isinstance(solution.what, Candidate):
            return Choice(pattern=name, point=solution.what[0].point)
        graph = self.context.cases[0].graph
        regions = alike(graph, target.pattern) if target.pattern is not None else (target.subproblem.region,)
        regions = self.libraries[name].regions if name in self.libraries else regions
        written = Written(title=target.subproblem.title, candidate=solution.what, regions=regions)
        return Choice(pattern=name, point=(), written=written)

    # ---- all of them together

    def choices(self, solved: dict[str, Solved | None]) -> Steps[list[Solved]]:
        """Everything that may be realised, the largest measured gain first; what was not solved by itself is tuned
        where it stands."""
        given = {id: s.choice.point for id, s in solved.items() if s is not None and s.choice.written is None}
        proposed = [s for id, s in solved.items() if s is not None and id not in self.stands]
        given |= {id: p.space.points[0] for id, p in self.stands.items() if id in solved and id not in given}
        points = yield from self.tuned(_TUNING_SHARE if "tuning" in self.parts else 0.0, given=given, rivals=True)
        found = [_realised(p.id, points[p.id], solved) for p in self.patterns]
        kept = [*(s for s in found if s is not None), *proposed]
        self.all = tuple(s.choice for s in kept)
        return sorted(kept, key=lambda s: -s.gain_ns)


def _settled(search: _Fact, choices: Sequence[Solved]) -> tuple[Recipe, Recipe]:
    """Of realisations that overlap the one that gained more, and the others, which stay its rivals."""
    chosen: list[Choice] = []
    rivals: list[Choice] = []
    for solved in choices:
        overlaps = any(clash(search, solved.choice, other) for other in chosen)
        (rivals if overlaps else chosen).append(solved.choice)
    return tuple(chosen), tuple(rivals)


def _untried(search: _Fact, name: str) -> Solved:
    """A library's call that is refused by itself: on inputs that the module may never make (a NaN in the keys alone,
    say), so it gets its trial in the module, as a rival."""
    return Solved(choice=Choice(pattern=name, point=(), written=search.libraries[name]), gain_ns=0.0)


def _tried(search: _Fact, target: Target, what: Candidate | Recipe, *, why: str) -> Steps[Solution | None]:
    """What is at hand for a subproblem, if the judge takes it."""
    event = yield from search.move(Within(subproblem=target.subproblem, move=Try(what=what, why=why)))
    return solution_of(what, event.outcome)


def _is_all(context: SearchContext, target: Target) -> bool:
    """Whether a pattern is all that the module does, and nobody but skeletons may realise it: it is tuned where it
    stands then."""
    share = sum(p.share for p in context.parts if p.pattern and p.pattern == target.subproblem.name)
    return share >= _ALL and not context.model and not context.libraries


def _realised(id: str, point: Point, solved: dict[str, Solved | None]) -> Solved | None:
    if id in solved:
        return solved[id]
    return Solved(choice=Choice(pattern=id, point=point), gain_ns=0.0)


def _trusted(known: Known | None) -> Solution | None:
    """What is known and needs no judging, as it was measured."""
    if known is None or known.doubt:
        return None
    entry, ns = known.realised, known.realised.time_ns.mid
    return Solution(what=entry.what, ratio=entry.ratio, ns=ns, floor_ns=entry.floor_share * ns)


def _fits(context: SearchContext, recipe: Recipe) -> bool:
    """Whether all that a recipe names is there."""
    graph = context.cases[0].graph
    nodes = {n.name for n in graph.nodes} if graph is not None else set[str]()
    spaces = {p.id: p.space for m in context.matched for p in m.patterns}
    return all(
        all({*r.nodes, *r.inputs, *r.outputs} <= nodes for r in c.written.regions)
        if c.written is not None
        else c.pattern == INDUCTOR or (c.pattern in spaces and spaces[c.pattern].holds(c.point))
        for c in recipe
    )


def _is_found(pattern: Pattern, inside: SearchContext) -> bool:
    """Whether a subproblem, traced by itself, holds this very pattern."""
    return any(p.same == pattern.same for m in inside.matched for p in m.patterns)


def _is_of(pattern: Pattern, inside: SearchContext, what: Candidate | Recipe) -> bool:
    """Whether what was made within a subproblem is this very pattern, and nothing else."""
    if isinstance(what, Candidate):
        return True
    classes = {p.id: p.same for m in inside.matched for p in m.patterns}
    mine = [c.point for c in what if classes.get(c.pattern) == pattern.same]
    return len(what) == len(mine) == 1 and pattern.space.holds(mine[0])
