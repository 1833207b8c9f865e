"""All realisations in one module: the part of them that the judge takes, and what each of them is worth in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..facts.move import Try
from ..facts.outcome import Failure, Timed
from ..facts.pattern import Choice, Recipe
from .asking import faster
from .tuning import Steps, Tuning

MAX_LEFT_OUT = 6  # patterns whose share is measured by leaving each out; a Try each
EXACTER = ("split", "bf16x6")  # the knob's value that is right where the others are not accurate enough


class Composing(Tuning):
    """All that may be realised (`all`), and the search for the part of it that is right and pays."""

    all: Recipe = ()

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
            spares = self.spares(recipe)
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

    def pruned(self, best: Recipe, timed: Timed, *, most: int = MAX_LEFT_OUT) -> Steps[tuple[Recipe, Timed]]:
        """Leave out each group in turn, and products for torch's with kernels around them; what is faster without a
        group beyond noise goes on without it."""
        groups = self.groups(best)
        if len(groups) > most:
            return best, timed
        for group in groups:
            if not self.has_time(0.9):
                break
            without = (*(c for c in best if c not in group), *self.spares(group))
            if not without:
                break
            event = yield from self.move(Try(what=without, why=f"without {group[0].pattern}: what is its share?"))
            if isinstance(event.outcome, Timed) and faster(event.outcome, timed):
                best, timed = without, event.outcome
        return best, timed

    def groups(self, recipe: Recipe) -> list[Recipe]:
        """Choices that stand for the same pattern in different cases, together; they are kept or dropped as one."""
        titles = {p.id: (p.title, p.kind) for p in self.patterns}
        groups: dict[tuple[str, str, int], list[Choice]] = {}
        for matched in self.brief.matched:
            seen: dict[tuple[str, str], int] = {}
            for pattern in matched.patterns:
                key = titles[pattern.id]
                seen[key] = seen.get(key, 0) + 1
                chosen = [c for c in recipe if c.pattern == pattern.id]
                groups.setdefault((*key, seen[key]), []).extend(chosen)
        alone = [(c,) for c in recipe if c.pattern not in titles]
        return [*(tuple(g) for g in groups.values() if g), *alone]


def _halves(groups: Sequence[Recipe]) -> tuple[Recipe, Recipe]:
    middle = len(groups) // 2
    return tuple(c for g in groups[:middle] for c in g), tuple(c for g in groups[middle:] for c in g)


def gain(found: tuple[Recipe, Timed]) -> float:
    """How many times as fast as eager."""
    ratio = found[1].ratio("eager")
    return ratio.mid if ratio else 0.0
