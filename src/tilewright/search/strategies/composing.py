"""All realisations in one module: the part of them that the judge takes, and what each of them is worth in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ...facts.discovery import floor_of
from ...facts.move import Event, Outcome, Try
from ...facts.outcome import Failure, Timed
from ...facts.pattern import INDUCTOR, TAKES_OTHERS, Choice, Pattern, Recipe
from .faster import faster
from .left_over import of_many_launches
from .tuning import Steps, Tuning

MANY = 6  # patterns: of more, halves are left out before each by itself
EXACTER = ("split", "bf16x6")  # the knob's value that is right where the others are not accurate enough
_FEW = 2  # to be tuned, on a CPU, before a first judgement


class Composing(Tuning):
    """All that may be realised (`all`), and the search for the part of it that is right and pays."""

    all: Recipe = ()
    first: tuple[Recipe, Event] | None = None  # what was not tuned, and its judgement
    graph: Recipe = ()  # that all is one CUDA graph, where the judge takes that from the beginning

    def early(self) -> Steps[tuple[Recipe, Timed] | None]:
        """Moves: `Try` of all patterns at the points that are remembered, or the likeliest, so that a result is there
        before anything is tuned; None where the judge refuses it, where a context does not count its time, and where
        little is to be tuned: on a CPU, where that takes less than a judgement does, _FEW patterns or none. In a module
        of many launches `_is_guess` is left to torch where nothing is known of it: one that is slow would cost all."""
        remembered = {c.pattern for c in self.context.remembered}
        unknown = sum(len(p.space.points) > 1 and p.id not in remembered for p in self.main)
        if not self.context.opened_s or unknown <= (_FEW if self.context.problem.target == "cpu" else 0):
            return None
        points = yield from self.tuned(0.0)
        self.all = tuple(Choice(pattern=p.id, point=points[p.id]) for p in self.patterns)
        recipe = self.busy(self.all)
        if as_graph := of_many_launches(recipe, self.context):
            guessed = {p.id for p in self.patterns if _is_guess(p)} - remembered
            recipe = self.busy(tuple(c for c in self.all if c.pattern not in guessed))
        why = f"{len(recipe)} pattern(s) fused, nothing tuned yet"
        if as_graph:
            event = yield from self.move(Try(what=(*recipe, as_graph), why=f"{why}, all as one CUDA graph"))
            self.graph = (as_graph,) if isinstance(event.outcome, Timed) else ()
        if not self.graph:
            event = yield from self.move(Try(what=recipe, why=why))
        self.first = (*recipe, *self.graph), event
        return ((*recipe, *self.graph), event.outcome) if isinstance(event.outcome, Timed) else None

    def refined(self, recipe: Recipe, early: tuple[Recipe, Timed] | None) -> Steps[tuple[Recipe, Timed] | None]:
        """The better of a recipe, as far as the judge takes it, and of what was judged early; as one CUDA graph, too,
        where that is."""
        if early is None:
            return (yield from self.accepted(recipe))
        recipe = (*recipe, *self.graph)
        if recipe == early[0] or not self.has_time(1.0):
            return early
        event = yield from self.move(Try(what=recipe, why=f"{len(recipe)} pattern(s) fused, tuned"))
        return max(early, (recipe, event.outcome), key=gain) if isinstance(event.outcome, Timed) else early

    def spares(self, recipe: Recipe) -> Recipe:
        """What the products of a recipe do on their way out, as kernels of their own: for torch's products."""
        return tuple(c for c in self.all if c not in recipe and c not in self.busy((*recipe, c)))

    def exacter(self, recipe: Recipe) -> Recipe:
        """The same, each choice at the first of its Space's points that is exacter, where there is one."""
        spaces = {p.id: p.space for p in self.patterns}

        def chosen(choice: Choice) -> Choice:
            points = spaces[choice.pattern].points if choice.pattern in spaces else ()
            exact = next((p for p in points if EXACTER in p), None)
            return choice if exact is None or EXACTER in choice.point else replace(choice, point=exact)

        return tuple(chosen(c) for c in recipe)

    def accepted(self, recipe: Recipe) -> Steps[tuple[Recipe, Timed] | None]:
        """The recipe if the judge takes it; else the largest part of it that it takes, found by halving."""
        if self.first is not None and self.first[0] == recipe:
            event = self.first[1]
        else:
            event = yield from self.move(Try(what=recipe, why=f"{len(recipe)} pattern(s) fused"))
        if isinstance(event.outcome, Timed):
            return recipe, event.outcome
        groups = self.groups(recipe)
        if len(groups) < 2:
            exacter = self.exacter(recipe)
            wrong = isinstance(event.outcome, Failure) and event.outcome.reason == "wrong_values"
            if wrong and exacter != recipe and self.has_time(0.9):
                event = yield from self.move(Try(what=exacter, why="the same, with all bits of fp32"))
                if isinstance(event.outcome, Timed):
                    return exacter, event.outcome
            spares = self.busy(self.spares(recipe))
            return (yield from self.accepted(spares)) if spares and self.has_time(0.9) else None
        good: list[tuple[Recipe, Timed]] = []
        for part in _halves(groups):
            if self.has_time(0.9):
                found = yield from self.accepted(part)
                good += [found] if found else []
        if len(good) < 2:
            return good[0] if good else None
        whole = tuple(c for part, _ in good for c in part)
        event = yield from self.move(Try(what=whole, why="the accepted parts together"))
        return (whole, event.outcome) if isinstance(event.outcome, Timed) else max(good, key=gain)

    def pruned(self, best: Recipe, timed: Timed) -> Steps[tuple[Recipe, Timed]]:
        """What is faster beyond noise without a part of its patterns goes on without it, as far as the budget goes: of
        many halves are left out first; then each by itself, or for what else may stand in its place, of many those
        first that are likely to lose and have the largest share; then what came in the place of others."""
        self.judged: dict[frozenset[Choice], Outcome] = {frozenset(best): timed}
        groups = self.groups(best)
        if len(groups) > MANY:
            groups.sort(key=lambda g: -self._floor_ns(g))
            best, timed, groups = yield from self._lightened(best, timed, groups)
        todo = self._ways(groups)
        while todo:
            group, instead = todo.pop(0)
            if not set(group) <= set(best):
                continue
            found = yield from self._without(best, group, instead, why="what is its share?")
            if found is not None and faster(found[1], timed):
                todo += self._ways([g for g in self.groups(found[0]) if not set(g) <= set(best)])
                best, timed = found
        return best, timed

    def _lightened(
        self, best: Recipe, timed: Timed, groups: Sequence[Recipe]
    ) -> Steps[tuple[Recipe, Timed, list[Recipe]]]:
        """Without those of these groups that slow the rest, as is found by leaving out one half and then the other, and
        halves of a half where that is faster; and the groups that stay, that half first which gains less for its floor:
        it is likelier to hold another such."""
        halves: list[tuple[float, list[Recipe]]] = []
        for half in (list(groups[::2]), list(groups[1::2])):
            part = tuple(c for g in half for c in g)
            lighter = yield from self._without(best, part, self.busy(self.spares(part)), why="do they slow the others?")
            if lighter is None:
                halves.append((inf, half))
                continue
            worth = (gain((best, timed)) - gain(lighter)) / max(sum(map(self._floor_ns, half)), 1.0)
            if faster(lighter[1], timed):
                found = (best, timed, half)
                if len(half) > 1:
                    found = yield from self._lightened(best, timed, half)
                best, timed, half = (lighter[0], lighter[1], []) if faster(lighter[1], found[1]) else found
            halves.append((worth, half))
        halves.sort(key=lambda pair: pair[0])
        return best, timed, [g for _, half in halves for g in half]

    def _ways(self, groups: Sequence[Recipe]) -> list[tuple[Recipe, Recipe]]:
        """Each group with what may stand in its place: kernels of our own, and after all groups, where a product is
        among those, torch's product with kernels around it."""
        kinds = {p.id: p.kind for p in self.patterns}
        spares = [(group, self.spares(group)) for group in groups]
        ours = [(group, self.busy(instead)) for group, instead in spares]
        plain = [(g, tuple(c for c in instead if kinds[c.pattern] not in TAKES_OTHERS)) for g, instead in spares]
        return [*ours, *(way for way in plain if way not in ours)]

    def _without(
        self, best: Recipe, part: Recipe, instead: Recipe, *, why: str
    ) -> Steps[tuple[Recipe, Timed] | None]:  # fmt: skip
        """The recipe with something else in the place of a part, if that is left, there is time, and the judge takes
        it; what was judged is not judged again."""
        rest = tuple(c for c in best if c not in part)
        without = self.busy((*rest, *(c for c in instead if c not in rest)))
        if frozenset(without) not in self.judged:
            if not without or not self.has_time(0.9):
                return None
            names = ", ".join(dict.fromkeys(c.pattern for c in part))
            event = yield from self.move(Try(what=without, why=f"without {names}: {why}"))
            self.judged[frozenset(without)] = event.outcome
        outcome = self.judged[frozenset(without)]
        return (without, outcome) if isinstance(outcome, Timed) else None

    def _floor_ns(self, group: Recipe) -> float:
        """The time that the main case's matches can't beat: where it is long, much can be won or lost. What was written
        for its place may lose most."""
        main = {p.id: p for p in self.main}
        return sum(
            inf if c.written is not None else floor_of(main[c.pattern], self.context.machine)
            for c in group
            if c.written is not None or c.pattern in main
        )  # fmt: skip

    def groups(self, recipe: Recipe) -> list[Recipe]:
        """Choices that stand for the same pattern in different cases, together; they are kept or dropped as one."""
        titles = {p.id: (p.title, p.kind) for p in self.patterns}
        groups: dict[tuple[str, str, int], list[Choice]] = {}
        for matched in self.context.matched:
            seen: dict[tuple[str, str], int] = {}
            for pattern in matched.patterns:
                key = titles[pattern.id]
                seen[key] = seen.get(key, 0) + 1
                group = groups.setdefault((*key, seen[key]), [])
                group += [c for c in recipe if c.pattern == pattern.id and c not in group]
        alone = [(c,) for c in recipe if c.pattern not in titles and c.pattern != INDUCTOR]
        return [*(tuple(g) for g in groups.values() if g), *alone]


def _is_guess(pattern: Pattern) -> bool:
    """Whether a library may well be faster at the likeliest point: convolutions, attention, and products of 16 bits."""
    return pattern.kind in ("convolution", "attention", "attention_backward") or (
        pattern.kind == "product" and pattern.program.operands[0].dtype in ("f16", "bf16")
    )


def _halves(groups: Sequence[Recipe]) -> tuple[Recipe, Recipe]:
    middle = len(groups) // 2
    return tuple(c for g in groups[:middle] for c in g), tuple(c for g in groups[middle:] for c in g)


def gain(found: tuple[Recipe, Timed]) -> float:
    """How many times as fast as eager."""
    ratio = found[1].ratio("eager")
    return ratio.mid if ratio else 0.0
