"""Several models that take turns; where one can't be reached, the next answers for it."""

from __future__ import annotations

from collections.abc import Sequence

from ...facts.dialogue import Reply
from ...facts.errors import ModelOut
from ...facts.move import Ask
from .model import Model


class Ensemble:
    """Turn n belongs to member n modulo their number, on a resumed run too. Replies name who answered."""

    def __init__(self, members: Sequence[Model]) -> None:
        self._members = tuple(members)

    def announce(self, asks: Sequence[Ask]) -> None:
        for index, member in enumerate(self._members):
            member.announce([ask for ask in asks if ask.turn % len(self._members) == index])

    def ask(self, ask: Ask) -> Reply:
        """Raises ModelOut only where no member can be reached."""
        faults = []
        for step in range(len(self._members)):
            try:
                return self._members[(ask.turn + step) % len(self._members)].ask(ask)
            except ModelOut as fault:
                faults.append(str(fault))
        raise ModelOut("; ".join(faults))
