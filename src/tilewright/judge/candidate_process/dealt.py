"""What is dealt for timed calls: their slots, the state that they move, and what the last of them returned and left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..memory.mapped import exchange
from ..wire import calls as wire
from .moving import Left, Moving
from .timing import Copies, Seen


@dataclass(frozen=True, slots=True)
class DealtOut:
    """Of one timed call: its slot, what it returned, and what it left of the state that it moves."""

    slot: int
    seen: Seen
    left: Left


class Dealt:
    """The slots of the calls to come, as they are handed out and as we have them ourselves; what the last call
    returned and left, and the same of those before it in a row."""

    __slots__ = ("args", "before", "handed", "last", "moving", "slots", "spare")

    def __init__(
        self, args: str, slots: Sequence[tuple[Tensor, ...]], handed: Sequence[tuple[Tensor, ...]], *, moving: Moving
    ) -> None:
        self.args, self.slots, self.handed, self.moving = args, slots, handed, moving
        self.last: DealtOut | None = None  # when the clock stopped
        self.before: list[DealtOut] = []
        self.spare: Copies = ()  # copies whose memory may be used again

    def forget(self) -> None:
        """Let results go; the memory of the last one's copies stays."""
        if self.last is not None:
            self.spare = self.last.seen.copies
            self.moving.use_again(self.last.left)
            self.last = None
        self.before = []

    def take(self, slot: int, seen: Seen) -> None:
        """What the call on the slot returned, and, as it is now, what it left."""
        self.last = DealtOut(slot, seen, self.moving.left())

    def step_on(self, *, keep: bool) -> None:
        """Before the next call of a row: the last result is kept beside those before it, or let go."""
        if keep and self.last is not None:
            self.before.append(self.last)
            self.spare, self.last = (), None
            self.moving.use_nothing_again()
        else:
            self.forget()

    def taken(self, number: int) -> DealtOut:
        """A call in the row (-1: the last), which is handed over with the memory of its copies; all others are let
        go."""
        if self.last is None:
            raise RuntimeError("no timed call was made")
        found = [*self.before, self.last][number]
        self.before, self.last, self.spare = [], None, ()
        self.moving.use_nothing_again()
        return found

    def stir(self, swaps: Sequence[wire.Swap]) -> None:
        for swap in swaps:
            one, other = self.slots[swap.slot][swap.input], self.slots[swap.other][swap.input]
            if swap.dim >= 0:
                one = one.narrow(swap.dim, swap.start, swap.count)
                other = other.narrow(swap.dim, swap.other_start, swap.count)
            exchange(one, other)

    @property
    def is_plain(self) -> bool:
        """Whether nothing of it was replaced by something that only behaves like it."""
        parts: tuple[tuple[Any, type], ...] = ((self, Dealt), (self.moving, Moving))
        return all(type(part) is kind for part, kind in parts)
