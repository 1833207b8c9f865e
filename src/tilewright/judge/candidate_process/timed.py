"""Timed calls in a cell: their slots are dealt, cleared before each, called on, and what was returned is held."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..wire import calls as wire
from .arenas import MappedArenas
from .dealt import Dealt
from .load import blaming
from .moving import Moving
from .subject import CandidateSubject, first_moved, handed
from .timing import Timer, repeated


class CallTimer:
    """Answers the requests of timed calls on one subject."""

    __slots__ = ("_arenas", "_dealt", "_subject", "_timer")  # no method can be hidden in an instance

    def __init__(self, subject: CandidateSubject, arenas: MappedArenas, timer: Timer) -> None:
        self._subject, self._arenas, self._timer = subject, arenas, timer
        self._dealt: Dealt | None = None

    @property
    def is_plain(self) -> bool:
        """Whether slots and results lie in plain things, which give back what was put in."""
        return self._dealt is None or (type(self._dealt) is Dealt and self._dealt.is_plain)

    def deal(self, request: wire.Deal) -> None:
        slots = [self._arenas.read(refs) for refs in request.slots]
        moving = Moving(self._subject.built, request.moved, self._arenas.read(request.state))
        self._dealt = Dealt(request.args, slots, [handed(tensors) for tensors in slots], moving=moving)

    def lay(self, request: wire.Lay) -> None:
        self._arenas.lay(request.offset, request.size_bytes)

    def forget(self) -> None:
        """Let the results of timed calls go."""
        if self._dealt is not None:
            self._dealt.forget()

    def take_back(self) -> None:
        """No slots are dealt any more."""
        self._dealt = None

    def clear(self, request: wire.Clear) -> wire.Cleared | None:
        """The same before every timed call: whether it will be looked at is not decided yet."""
        if self._dealt is not None:
            self._dealt.forget()
            self._dealt.moving.attributes = request.attributes
        self._start_anew()
        return self._timer.evict(request.flush_bytes, self._arenas.block, seed=request.seed)

    def _start_anew(self) -> None:
        self._subject.drop_held()
        if self._dealt is not None:
            with blaming("raised", "writing to the state raised"):
                self._dealt.moving.put_back()

    def call(self, request: wire.TimedCall) -> wire.Tick:
        dealt = self._dealt
        if dealt is None:
            raise RuntimeError("no slots were dealt")
        ready = self._subject.bound(dealt.args, dealt.handed[request.slot], request.phase)
        change: Callable[[], None] | None = partial(self._change, dealt, request)
        if request.phase == "backward":  # the forward before it reads the inputs
            self._change(dealt, request)
            change = None
        with blaming("raised", "forward raised while it was timed"), self._subject.grad_mode():
            call = ready() if request.repeat == 1 else repeated(ready(), request.repeat)
        self._timer.prepare(change, dealt.slots[request.slot] if request.warm else (), request)
        with blaming("raised", "forward raised while it was timed"), self._subject.grad_mode():
            tick, seen = self._timer.time(call, dealt.spare)
        dealt.take(request.slot, seen)
        return tick

    def _change(self, dealt: Dealt, request: wire.TimedCall) -> None:
        if request.lay_bytes:
            self._arenas.lay(request.lay_offset, request.lay_bytes)
        dealt.stir(request.swaps)

    def calls(self, request: wire.TimedCalls) -> wire.Ticks:
        ticks: list[wire.Tick] = []
        for call in request.calls:
            if self._dealt is not None and ticks:
                self._dealt.step_on(keep=request.keep)
                self._start_anew()
            ticks.append(self.call(call))
        return wire.Ticks(ticks=tuple(ticks))

    def hold(self, request: wire.HoldTimed) -> wire.Called:
        assert self._dealt is not None, "no timed call was made"
        taken, moving = self._dealt.taken(request.number), self._dealt.moving
        inputs, given = self._dealt.slots[taken.slot], self._dealt.handed[taken.slot]
        tree, outputs = self._subject.held.take(0, taken.seen, inputs)
        moving.require_whole(taken.left)
        self._subject.held.take(wire.LEFT, taken.left.seen, inputs)
        moved = first_moved(given, inputs)
        return wire.Called(outputs_tree=tree, outputs=outputs, moved_input=moved, attributes=taken.left.attributes)


def anew(timer: CallTimer) -> None:
    """Put the state back to what was dealt, if calls move it on so that many in a row would lead out of it."""
    if timer._dealt is not None and timer._dealt.moving.counts:
        timer._dealt.moving.put_back()
