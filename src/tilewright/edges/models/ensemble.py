"""Several models that take turns; where one can't be reached, the next answers for it."""

from __future__ import annotations

from collections.abc import Sequence

from ...facts.dialogue import Reply
from ...facts.errors import ModelOut
from ...facts.move import Ask
from .model import Model


class ModelEnsemble:
    """Turn n belongs to member n modulo their number, on a resumed run too, unless the Ask names one. Replies name who
    answered."""

    def __init__(self, members: Sequence[Model]) -> None:
        self._members = tuple(members)

    def announce(self, asks: Sequence[Ask]) -> None:
        for index, member in enumerate(self._members):
            member.announce([ask for ask in asks if self._first(ask) == index])

    def ask(self, ask: Ask) -> Reply:
        """Raises ModelOut only where no member can be reached."""
        faults = []
        for step in range(len(self._members)):
            try:
                return self._members[(self._first(ask) + step) % len(self._members)].ask(ask)
            except ModelOut as fault:
                faults.append(str(fault))
        raise ModelOut("; ".join(faults))

    def _first(self, ask: Ask) -> int:
        """Whose turn it is, before anybody else is asked."""
        return (ask.turn if ask.sampling.member is None else ask.sampling.member) % len(self._members)
