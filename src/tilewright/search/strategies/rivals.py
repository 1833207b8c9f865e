"""Libraries' calls beside skeletons: each in the place of what it overlaps with, at the fastest of its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...facts.move import Try, Tune
from ...facts.outcome import Timed, Tuned
from ...facts.pattern import Choice, Recipe, without_inductor
from .composing import Composing
from .faster import faster
from .tuning import Steps, winning

Accepted = tuple[Recipe, Timed]
_SHARE = 0.9  # of the budget, until which a try may begin


def clash(search: Composing, one: Choice, other: Choice) -> bool:
    """Whether both compute some value, and one of them was written for its place; of skeletons, the composer knows
    which of two makes a value."""
    written = one.written is not None or other.written is not None
    return written and not _made(search, one).isdisjoint(_made(search, other))


def _made(search: Composing, choice: Choice) -> set[str]:
    if choice.written is not None:
        return {name for region in choice.written.regions for name in region.nodes}
    pattern = next((p for p in search.main if p.id == choice.pattern), None)
    return set(pattern.nodes) if pattern is not None else set()


def with_rivals(search: Composing, best: Accepted | None, rivals: Recipe) -> Steps[Accepted | None]:
    """Rivals in the place of those with which they overlap; what is faster beyond noise stays, or the first that the
    judge takes where there is none yet. Those that together take the place of one are tried so, and not each by
    itself."""
    recipe: Recipe = best[0] if best is not None else ()
    for group in _groups_of(search, rivals, recipe):
        if not search.has_time(_SHARE):
            break
        recipe = best[0] if best is not None else ()
        others = tuple(c for c in recipe if not any(clash(search, rival, c) for rival in group))
        turned = yield from turned_alike(search, others, group)
        names = " and ".join(rival.pattern for rival in group)
        event = yield from search.move(Try(what=(*others, *turned), why=f"{names} in the place of rivals"))
        if isinstance(event.outcome, Timed) and (best is None or faster(event.outcome, best[1])):
            best = (*others, *turned), event.outcome
    return best


def turned_alike(search: Composing, others: Recipe, group: Recipe) -> Steps[Recipe]:
    """The group, each choice at its fastest point in the module; `others` stand beside it."""
    for number, choice in enumerate(group):
        points = choice.written.points if choice.written is not None else ()
        if len(points) < 2 or "tuning" in search.context.without or not search.has_time(_SHARE):
            continue
        recipe = without_inductor((*others, *group))
        event = yield from search.move(Tune(recipe=recipe, pattern=choice.pattern, points=points))
        fastest = winning(event.outcome) if isinstance(event.outcome, Tuned) else None
        if fastest is not None:
            group = (*group[:number], replace(choice, point=fastest), *group[number + 1 :])
    return group


def _groups_of(search: Composing, rivals: Recipe, best: Recipe) -> list[Recipe]:
    """Those that overlap with the same realisations and not with one another together, in their order."""
    groups: list[Recipe] = []
    for rival in rivals:
        rest = [g for g in groups if _rivalled(search, g[0], best) == _rivalled(search, rival, best)]
        home = next((g for g in rest if not any(clash(search, rival, other) for other in g)), None)
        if home is None:
            groups.append((rival,))
        else:
            groups[groups.index(home)] = (*home, rival)
    return groups


def _rivalled(search: Composing, rival: Choice, best: Sequence[Choice]) -> Recipe:
    return tuple(c for c in best if clash(search, rival, c))
