"""How the CTAs of a cluster learn of one another's states: each sends its own to all, into their shared memory.

A message is a store that completes on the receiver's mbarrier (`st.async`), so nobody waits for memory as a whole, as a
release at cluster scope does. A CTA hears from all others in each sweep: once it has, nothing is on its way to it, and
it may leave. Each mbarrier serves one sweep of one row; or, where rows come in turn, of every second one: a CTA sends
what it has of a row when it has heard all of the row before, which the others told when they had read the one before
that."""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass import Float32, Int32, Int64, cute

from ..common.control import when
from .combine import Held, butterfly
from .reducers import Reducer, State

Value = Any


class Exchange:
    """Mailboxes for the states of `chunks` CTAs, and an mbarrier for each sweep."""

    def __init__(self, allocator: Any, sweeps: list[list[Reducer]], chunks: int, *, in_turn: bool) -> None:
        self._chunks, self._sets = chunks, 2 if in_turn else 1
        self._boxes = [
            [_Mailbox(allocator, reducer, chunks * self._sets) for reducer in reducers] for reducers in sweeps
        ]
        layout = cute.make_layout((len(sweeps) * self._sets,))
        self._barriers = allocator.allocate_tensor(Int64, layout, byte_alignment=8).iterator

    def open(self, thread: Any) -> None:
        """Before anything else; nothing is waited for here."""

        def prepare() -> None:
            for number in range(len(self._boxes) * self._sets):
                cute.arch.mbarrier_init(self._barriers + number, 1)
                self._expect(number // self._sets, self._barriers + number)

        when(thread == 0, prepare)
        cute.arch.mbarrier_init_fence()
        cute.arch.cluster_arrive_relaxed()

    def _expect(self, sweep: int, barrier: Any) -> None:
        expected = self._chunks * sum(box.message_bytes for box in self._boxes[sweep])
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, expected)

    def ready(self) -> None:
        """All of the cluster have opened: before the first `combine`."""
        cute.arch.cluster_wait()

    def combine(self, sweep: int, helds: list[Held], *, rank: Any, thread: Any, turn: Any = None) -> None:
        """All threads hold the states of their CTA; afterwards those of all CTAs, joined. Sweeps come in order; so do
        rows, of which `turn` is the number."""
        number, parity = (sweep, 0) if turn is None else (sweep * 2 + turn % 2, turn // 2 % 2)
        boxes, barrier = self._boxes[sweep], self._barriers + number
        first = 0 if turn is None else turn % 2 * self._chunks

        def send() -> None:
            for held, box in zip(helds, boxes, strict=True):
                box.send(held[0], barrier, cell=first + rank, receiver=thread)

        when(thread < self._chunks, send)
        cute.arch.mbarrier_wait(barrier, parity)
        if turn is not None:
            when(thread == 0, partial(self._expect, sweep, barrier))
        for held, box in zip(helds, boxes, strict=True):
            held[0] = box.read(first + cute.arch.lane_idx() % self._chunks)
            butterfly(held, self._chunks)


class _Mailbox:
    """One reduction's states, by sender; messages are of 4 or 8 bytes."""

    def __init__(self, allocator: Any, reducer: Reducer, cells: int) -> None:
        self._kinds = reducer.types
        layout = cute.make_layout((cells,))
        held = [kind if kind in (Float32, Int64) else Int32 for kind in self._kinds]
        self._arrays = [allocator.allocate_tensor(kind, layout, byte_alignment=16) for kind in held]
        self.message_bytes = sum(kind.width // 8 for kind in held)

    def send(self, state: State, barrier: Any, *, cell: Any, receiver: Any) -> None:
        for array, value in zip(self._arrays, state, strict=True):
            cute.arch.store_async_dsmem(array.iterator + cell, _words(value), barrier, receiver)

    def read(self, cell: Any) -> State:
        return tuple(array[cell].to(kind) for array, kind in zip(self._arrays, self._kinds, strict=True))


def _words(value: Value) -> Value:
    """The value as one Int32, or two, the low one first."""
    if type(value) is Float32:
        return value.bitcast(Int32)
    if type(value) is Int64:
        return value.to(Int32), (value >> 32).to(Int32)
    return value.to(Int32)
