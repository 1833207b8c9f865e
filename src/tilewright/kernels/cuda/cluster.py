"""How the CTAs of a cluster learn of one another's states: each sends its own to all, into their shared memory.

A message is a store that completes on the receiver's mbarrier (`st.async`), so nobody waits for memory as a whole, as a
release at cluster scope does. A CTA hears from all others in each sweep: once it has, nothing is on its way to it, and
it may leave. Each mbarrier serves one sweep of one row."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64, cute

from .combine import Held, butterfly
from .control import when
from .reducers import Reducer, State

Value = Any


class Exchange:
    """Mailboxes for the states of `chunks` CTAs, and an mbarrier for each sweep."""

    def __init__(self, allocator: Any, sweeps: list[list[Reducer]], chunks: int) -> None:
        self._chunks = chunks
        self._boxes = [[_Mailbox(allocator, reducer, chunks) for reducer in reducers] for reducers in sweeps]
        layout = cute.make_layout((len(sweeps),))
        self._barriers = allocator.allocate_tensor(Int64, layout, byte_alignment=8).iterator

    def open(self, thread: Any) -> None:
        """Before anything else; nothing is waited for here."""

        def prepare() -> None:
            for sweep, boxes in enumerate(self._boxes):
                cute.arch.mbarrier_init(self._barriers + sweep, 1)
                expected = self._chunks * sum(box.message_bytes for box in boxes)
                cute.arch.mbarrier_arrive_and_expect_tx(self._barriers + sweep, expected)

        when(thread == 0, prepare)
        cute.arch.mbarrier_init_fence()
        cute.arch.cluster_arrive_relaxed()

    def combine(self, sweep: int, helds: list[Held], *, rank: Any, thread: Any) -> None:
        """All threads hold the states of their CTA; afterwards those of all CTAs, joined. Sweeps come in order."""
        if sweep == 0:
            cute.arch.cluster_wait()  # all mbarriers stand
        boxes, barrier = self._boxes[sweep], self._barriers + sweep

        def send() -> None:
            for held, box in zip(helds, boxes, strict=True):
                box.send(held[0], barrier, sender=rank, receiver=thread)

        when(thread < self._chunks, send)
        cute.arch.mbarrier_wait(barrier, 0)
        for held, box in zip(helds, boxes, strict=True):
            held[0] = box.read(cute.arch.lane_idx() % self._chunks)
            butterfly(held, self._chunks)


class _Mailbox:
    """One reduction's states, by sender; messages are of 4 or 8 bytes."""

    def __init__(self, allocator: Any, reducer: Reducer, chunks: int) -> None:
        self._kinds = reducer.types
        layout = cute.make_layout((chunks,))
        held = [kind if kind in (Float32, Int64) else Int32 for kind in self._kinds]
        self._arrays = [allocator.allocate_tensor(kind, layout, byte_alignment=16) for kind in held]
        self.message_bytes = sum(kind.width // 8 for kind in held)

    def send(self, state: State, barrier: Any, *, sender: Any, receiver: Any) -> None:
        for array, value in zip(self._arrays, state, strict=True):
            cute.arch.store_async_dsmem(array.iterator + sender, _words(value), barrier, receiver)

    def read(self, sender: Any) -> State:
        return tuple(array[sender].to(kind) for array, kind in zip(self._arrays, self._kinds, strict=True))


def _words(value: Value) -> Value:
    """The value as one Int32, or two, the low one first."""
    if type(value) is Float32:
        return value.bitcast(Int32)
    if type(value) is Int64:
        return value.to(Int32), (value >> 32).to(Int32)
    return value.to(Int32)
