"""What every model here is: it is told of prompts ahead, and replies to one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ...facts.dialogue import Reply
from ...facts.move import Ask

# The key of a provider, by the names of variables that may hold it, the first that does; None where none is known.
Keys = Callable[[tuple[str, ...]], str | None]


class Model(Protocol):
    """Raises Pending where the reply has not come yet, ModelOut where none can be had for now, and UserError for what
    the user has to mend (a key, a name, money)."""

    def announce(self, asks: Sequence[Ask]) -> None:
        """Hear of prompts that will be put in this order; what takes time may begin."""

    def ask(self, ask: Ask) -> Reply: ...
