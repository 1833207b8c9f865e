"""The state of a reference's module: taken, given back, moved, and shared with the guests of a case memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..wire import messages as wire
from .one_case import OneCase
from .places import Refs
from .sameness import same_bits


class CaseState:
    """Of the case that the reference has constructed. `names`: of its tensors, which lie in the order of `shared`;
    `attributes`: plain values that calls move, as `take` found them; `left_attributes`: as the reference's last call
    left them."""

    def __init__(self, case: OneCase) -> None:
        self._described, self._reference, self._limits = case.described, case.reference, case.limits
        self._arenas, self._places = case.arenas, case.places
        self.names = tuple(s.name for s in case.described.state)
        self.shared = case.places.shared_state
        self.attributes = self.left_attributes = case.described.attributes

    def take(self) -> None:
        """Copy the reference's state, as it is now, into both arenas."""
        self.attributes = self._read_attributes()
        if self._places.state:
            self._reference.do(wire.StoreState(names=self.names, refs=self._places.state))
            for private, shared in zip(self._places.state, self._places.shared_state, strict=True):
                self._arenas.shared.tensor(shared).copy_(self._arenas.private.tensor(private))
            self._arenas.settle()

    def holds_shared(self) -> bool:
        """Whether the state that guests load is still what `take` put there."""
        pairs = zip(self._places.state, self._places.shared_state, strict=True)
        return all(
            same_bits(self._arenas.private.tensor(mine), self._arenas.shared.tensor(theirs)) for mine, theirs in pairs
        )

    def give(self) -> None:
        """Put the reference's state back to what `take` found."""
        if self._places.state or self.attributes:
            request = wire.LoadState(names=self.names, refs=self._places.state, attributes=self.attributes)
            self._reference.do(request)

    def _read_attributes(self) -> tuple[wire.Attribute, ...]:
        if not self._described.attributes:
            return ()
        request = wire.ReadAttributes(names=tuple(a.name for a in self._described.attributes))
        return self._reference.ask(request, wire.Attributes, limit_s=self._limits.call_s).values

    def take_left(self) -> None:
        """What the reference's last call has left of what it moves, for comparison; then its state is as before."""
        if self._places.moved or self.attributes:
            self.left_attributes = self._read_attributes()
            self._reference.do(wire.StoreState(names=self._described.mutated_state, refs=self._places.moved))
            self.give()

    def advance(self, calls: int) -> None:
        """Have the reference count from the start: plain attributes as constructed, and so many calls on pool set 0.
        What tensors these move is put back to what it was."""
        if self._described.attributes:
            self._reference.do(wire.StoreState(names=self.names, refs=self._places.state))
            start = wire.LoadState(names=(), refs=(), attributes=self._described.attributes)
            self._reference.do(start)
            for _ in range(calls):
                call = wire.CallRequest(
                    tag=0, args=self._described.args, inputs=self._places.pool[0], poison_bytes=(), seed=calls
                )
                self._reference.ask(call, wire.Called, limit_s=self._limits.call_s)
            self._reference.do(wire.Drop())
            self._reference.do(wire.LoadState(names=self.names, refs=self._places.state))

    def marks(self) -> tuple[wire.Mark, ...]:
        return self._reference.ask(wire.MarkState(), wire.Marked, limit_s=self._limits.call_s).marks

    def move(self, request: wire.Redraw | wire.RedrawAlike | wire.PutBack) -> None:
        """Perturb the reference's floating state, or put masks, flags and indices back, which is done before, too."""
        self._reference.do(request)

    def rearrange(self, seed: int, keys: tuple[str, ...] = ()) -> wire.Rearranged:
        """Rearrange the reference's masks, flags and indices as far as it bears that on pool set 0, which must be
        drawn; `keys`: only those whose marks have these keys."""
        request = wire.Rearrange(seed=seed, args=self._described.args, inputs=self._places.pool[0], keys=keys)
        return self._reference.ask(request, wire.Rearranged, limit_s=self._limits.call_s)

    def buffers(self, names: Sequence[str], *, left: bool = False) -> Refs:
        """Where guests find what these buffers held when `take` took them; `left`: where a guest is to put what its
        calls have left of them."""
        places = self._places.after if left else self._places.before
        return tuple(r for n, r in zip(self._described.mutated_state, places, strict=True) if n in names)

    def tensors(self) -> tuple[Tensor, ...]:
        """What `take` found."""
        return tuple(self._arenas.private.tensor(r) for r in self._places.state)
