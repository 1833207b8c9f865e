"""FACT's way: what can win most first, each pattern solved as a problem of its own, then all of them composed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..facts.candidate import Candidate
from ..facts.move import Ask, Enter, Event, Move, Stop, Try
from ..facts.outcome import Timed
from ..facts.pattern import Choice, Pattern, Piece, Recipe, Region, Written
from ..facts.run import Brief
from ..facts.space import Point
from .asking import faster
from .catalog import catalog, nothing_matched
from .composing import Composing
from .cutegen import cutegen
from .ending import handed_over
from .spending import Spending
from .tuning import Steps
from .within import Solution, solved_within

LEAST_GAIN = 0.01  # share of the module's time: a pattern that could win less is realised untuned, and not by itself
LEAST_TO_ASK = 0.03  # and of what a tuned skeleton leaves above the floor: below that no model is asked
_SOLVING_SHARE, _TUNING_SHARE = 0.6, 0.8  # of the budget, until which that may begin
MOST_LEFT_OUT = 12  # patterns whose share is measured by leaving each out; a Try each


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A realisation with what it was measured to gain on the piece by itself, ns a call of the module."""

    choice: Choice
    gain_ns: float


def fact(brief: Brief) -> Steps[None]:
    """Moves: for each pattern, the one that can win most first, `Enter` it, and within it those of `catalog`, then of
    `cutegen` where a model is at hand and enough is left above the floor; `Tune` in its place for what can't be run by
    itself; `Try` all together, the largest measured gain first where they overlap, then each rival in the place of what
    it overlaps with, and all but each; `Stop` with the best, if it is faster than eager beyond noise."""
    search = _Fact(brief)
    if not search.patterns:
        yield Stop(best=None, why=nothing_matched(brief))
        return
    solved = yield from search.solved()
    choices = yield from search.choices(solved)
    first, rivals = search.settled(choices)
    accepted = yield from search.accepted(search.busy(first))
    if accepted is None:
        yield Stop(best=None, why="the judge accepted none of the realisations")
        return
    best, timed = yield from search.with_rivals(*accepted, rivals)
    best, timed = yield from search.pruned(best, timed, most=MOST_LEFT_OUT)
    yield from handed_over(best, timed, brief=brief)


class _Fact(Composing):
    def __init__(self, brief: Brief) -> None:
        super().__init__(brief)
        self.spending = Spending(brief)
        self.known = {p.id: p for p in self.main}
        self._turns = 0

    def move(self, move: Move) -> Steps[Event]:
        event = yield from super().move(move)
        self.spending.count(event)
        return event

    def has_time(self, share: float) -> bool:
        return super().has_time(share) and not self.spending.over(asking=False)

    def numbered(self, ask: Ask) -> Ask:
        turn, self._turns = self._turns, self._turns + 1
        return replace(ask, turn=turn)

    # ---- each pattern by itself

    def solved(self) -> Steps[dict[str, Solved | None]]:
        """By pattern, what was found for it; None: nothing that is right and no slower than torch. A pattern that could
        not be run by itself, or could win too little, is not among them."""
        found: dict[str, Solved | None] = {}
        total_ns = sum(p.ns for p in self.brief.parts)
        gains = {p.pattern: p.ns / total_ns * p.distance for p in self.brief.parts if p.pattern in self.known}
        worth = [id for id, gain in gains.items() if gain >= LEAST_GAIN]
        for number, id in enumerate(worth):
            if not self.has_time(_SOLVING_SHARE):
                break
            pattern = self.known[id]
            piece = Piece(name=pattern.id, title=pattern.title, region=pattern.sites[0].region)
            event = yield from self.move(Enter(piece=piece))
            if isinstance(event.outcome, Brief):
                share = gains[id] / sum(gains[other] for other in worth[number:])
                solution = yield from self._solution(piece, event.outcome, share=share, gain=gains[id])
                known = self._choice(pattern, event.outcome, solution)
                if known is not None or solution is None or _slower(solution.timed):
                    found[pattern.id] = known
        return found

    def _solution(self, piece: Piece, inside: Brief, *, share: float, gain: float) -> Steps[Solution | None]:
        """The better of what skeletons and a model make of a piece, which could win `gain` of the module's time."""
        best = yield from solved_within(piece, catalog(self._given(inside, share)), move=self.move, ask=self.numbered)
        left = gain if best is None else gain * _left(best.timed)
        if self.brief.model and left >= LEAST_TO_ASK and self.has_time(_SOLVING_SHARE) and not self.spending.over():
            asked = self._given(inside, share)
            other = yield from solved_within(piece, cutegen(asked, tunes=False), move=self.move, ask=self.numbered)
            if other is not None and (best is None or faster(other.timed, best.timed)):
                return other
        return best

    def _given(self, inside: Brief, share: float) -> Brief:
        """A piece's problem with its share of what is left."""
        left_s = max(_SOLVING_SHARE * self.brief.budget_s - self.spent_s, 0.0)
        return replace(
            inside, budget_s=share * left_s, limits=self.spending.left().share(share), model=self.brief.model
        )

    def _choice(self, pattern: Pattern, inside: Brief, solution: Solution | None) -> Solved | None:
        """The solution in the place of the pattern; None where there is none, where it is slower than torch, and where
        the piece, traced by itself, was taken for another pattern."""
        if solution is None or _slower(solution.timed):
            return None
        choice: Choice | None = None
        if isinstance(solution.what, Candidate):
            regions = _alike(self.brief, pattern)
            written = Written(title=pattern.title, candidate=solution.what, regions=regions)
            choice = Choice(pattern=pattern.id, point=(), written=written)
        else:
            point = _same_point(pattern, inside, solution.what)
            choice = Choice(pattern=pattern.id, point=point) if point is not None else None
        gain_ns = _gained_ns(solution.timed) * max(1, len(pattern.sites))
        return Solved(choice=choice, gain_ns=gain_ns) if choice is not None else None

    # ---- all of them together

    def choices(self, solved: dict[str, Solved | None]) -> Steps[list[Solved]]:
        """Everything that may be realised, the largest measured gain first; what was not solved by itself is tuned
        where it stands."""
        given = {id: s.choice.point for id, s in solved.items() if s is not None and s.choice.written is None}
        given |= {id: self.known[id].space.points[0] for id in solved if id not in given}
        points = yield from self.tuned(_TUNING_SHARE, given=given)
        found = [_realised(p.id, points[p.id], solved) for p in self.patterns]
        kept = [s for s in found if s is not None]
        self.all = tuple(s.choice for s in kept)
        return sorted(kept, key=lambda s: -s.gain_ns)

    def settled(self, choices: Sequence[Solved]) -> tuple[Recipe, Recipe]:
        """Of realisations that overlap the one that gained more, and the others, which stay its rivals."""
        chosen: list[Choice] = []
        rivals: list[Choice] = []
        for solved in choices:
            clash = any(self._clash(solved.choice, other) for other in chosen)
            (rivals if clash else chosen).append(solved.choice)
        return tuple(chosen), tuple(rivals)

    def _clash(self, one: Choice, other: Choice) -> bool:
        """Whether both compute some value, and one of them was written for its place; of skeletons, the composer knows
        which of two makes a value."""
        written = one.written is not None or other.written is not None
        return written and not self._made(one).isdisjoint(self._made(other))

    def _made(self, choice: Choice) -> set[str]:
        if choice.written is not None:
            return {name for region in choice.written.regions for name in region.nodes}
        pattern = self.known.get(choice.pattern)
        return set(pattern.nodes) if pattern is not None else set()

    def with_rivals(self, best: Recipe, timed: Timed, rivals: Recipe) -> Steps[tuple[Recipe, Timed]]:
        """Each rival in the place of those with which it overlaps; what is faster beyond noise stays."""
        for rival in rivals:
            if not self.has_time(0.9):
                break
            others = tuple(c for c in best if not self._clash(rival, c))
            event = yield from self.move(Try(what=(*others, rival), why=f"{rival.pattern} in the place of its rivals"))
            if isinstance(event.outcome, Timed) and faster(event.outcome, timed):
                best, timed = (*others, rival), event.outcome
        return best, timed


def _realised(id: str, point: Point, solved: dict[str, Solved | None]) -> Solved | None:
    if id in solved:
        return solved[id]
    return Solved(choice=Choice(pattern=id, point=point), gain_ns=0.0)


def _slower(timed: Timed) -> bool:
    """Than torch, beyond noise."""
    ratio = timed.ratio("eager")
    return ratio is not None and ratio.high < 1.0


def _left(timed: Timed) -> float:
    """What is left above the floor, as a share of what eager takes above it."""
    ours, eager = timed.time("ours"), timed.time("eager")
    if ours is None or eager is None or eager.mid <= timed.floor_ns:
        return 0.0
    return max(0.0, ours.mid - timed.floor_ns) / (eager.mid - timed.floor_ns)


def _gained_ns(timed: Timed) -> float:
    ours, ratio = timed.time("ours"), timed.ratio("eager")
    return ours.mid * (ratio.mid - 1.0) if ours is not None and ratio is not None else 0.0


def _same_point(pattern: Pattern, inside: Brief, recipe: Recipe) -> Point | None:
    """The point of a recipe that is this very pattern, and nothing else."""
    classes = {p.id: p.shape_class for m in inside.matched for p in m.patterns}
    alike = [c.point for c in recipe if classes.get(c.pattern) == pattern.shape_class]
    return alike[0] if len(recipe) == 1 and alike and pattern.space.holds(alike[0]) else None


def _alike(brief: Brief, pattern: Pattern) -> tuple[Region, ...]:
    """The pattern's regions at which tensors of the same shapes enter and leave as at the first."""
    graph = brief.cases[0].graph
    shapes = {n.name: (n.shape, n.dtype, n.order) for n in graph.nodes} if graph is not None else {}
    regions = [site.region for site in pattern.sites]

    def looks(region: Region) -> list[tuple[object, ...]]:
        return [shapes.get(name, ()) for name in (*region.inputs, *region.outputs)]

    return tuple(r for r in regions if looks(r) == looks(regions[0]))
