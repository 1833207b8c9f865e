"""An archive of accepted kernels: islands, each with few members that are fast or unlike the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from .asking import Passed, shown

ALIKE = 0.05  # two kernels no further apart are variants of one: the faster stays
_SPEED = 4.0  # a parent twice as fast is drawn 2^4 times as often
_SHINGLE = 3  # words in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An accepted kernel. `born`: the generation that made it, 0 for the library's."""

    passed: Passed
    idea: str
    born: int
    shingles: frozenset[tuple[str, ...]]

    @property
    def gain(self) -> float:
        return self.passed.gain


def member(passed: Passed, *, idea: str, born: int) -> Member:
    text = "\n".join(file.text for file in shown(passed.candidate, whole=True)["files"])
    words = re.findall(r"\w+|[^\w\s]", re.sub(r"(?m)(#|//).*$", "", text))
    found = frozenset(tuple(words[i : i + _SHINGLE]) for i in range(max(len(words) - _SHINGLE + 1, 1)))
    return Member(passed=passed, idea=idea, born=born, shingles=found)


def distance(one: Member, other: Member) -> float:
    """Of their texts: 0 for the same, 1 where no three words in a row stand in both (Jaccard's, without comments)."""
    both = len(one.shingles | other.shingles)
    return 1 - len(one.shingles & other.shingles) / both if both else 0.0


class Archive:
    """`islands` of at most `size` members each. What is faster than its like takes its place; of an island that is
    full the member goes that is worth least, by speed and by novelty where `novelty` counts, and never the fastest."""

    def __init__(self, islands: int, *, size: int, novelty: bool) -> None:
        self.islands: tuple[list[Member], ...] = tuple([] for _ in range(islands))
        self._size = size
        self._novelty = novelty
        self._children: dict[str, int] = {}  # by the parent's digest

    def __iter__(self) -> Iterator[Member]:
        """Each kernel once, wherever it lives."""
        yield from {m.passed.candidate.id: m for island in self.islands for m in island}.values()

    def admit(self, new: Member, island: int) -> bool:
        """Whether it lives on."""
        home = self.islands[island]
        like = next((m for m in home if distance(m, new) <= ALIKE), None)
        if like is not None:
            if new.gain <= like.gain:
                return False
            home.remove(like)
        home.append(new)
        if len(home) > self._size:
            fastest = max(home, key=lambda m: m.gain)
            home.remove(min((m for m in home if m is not fastest), key=self._worth))
        return new in home

    def migrate(self) -> None:
        """The fastest of each island goes to the next one, too."""
        fastest = [max(island, key=lambda m: m.gain) if island else None for island in self.islands]
        for index, traveller in enumerate(fastest):
            if traveller is not None and len(self.islands) > 1:
                self.admit(traveller, (index + 1) % len(self.islands))

    def parent(self, island: int, dice: Random) -> Member:
        """Drawn by measured speed; where novelty counts, also the rather the less it is like the others, and the fewer
        children it has."""
        home = self.islands[island]
        chosen = dice.choices(home, weights=[self._weight(m) for m in home])[0]
        id = chosen.passed.candidate.id
        self._children[id] = self._children.get(id, 0) + 1
        return chosen

    def company(self, parent: Member, count: int) -> tuple[Member, ...]:
        """Others to show beside a parent: the fastest, then what is least like what is shown already."""
        left = sorted((m for m in self if m.passed.candidate.id != parent.passed.candidate.id), key=lambda m: -m.gain)
        found: list[Member] = []
        while left and len(found) < count:
            seen = [parent, *found]
            best = left[0] if not found else max(left, key=lambda m: min(distance(m, s) for s in seen))
            found.append(best)
            left.remove(best)
        return tuple(found)

    def _weight(self, one: Member) -> float:
        fastest = max(m.gain for m in self) or 1.0
        speed: float = (one.gain / fastest) ** _SPEED
        if not self._novelty:
            return speed
        return speed * (0.5 + self._unlike(one)) / (1 + self._children.get(one.passed.candidate.id, 0))

    def _worth(self, one: Member) -> float:
        return one.gain * (0.5 + self._unlike(one)) if self._novelty else one.gain

    def _unlike(self, one: Member) -> float:
        """The distance to the nearest."""
        return min((distance(one, m) for m in _others(one, tuple(self))), default=1.0)


def _others(one: Member, members: Sequence[Member]) -> Iterator[Member]:
    return (m for m in members if m.passed.candidate.id != one.passed.candidate.id)
