"""The first of a row in order, as a warp keeps them: keys, a sorted list in registers, a queue in shared memory.

A *key* is an Int64 that orders elements as wanted: above, the value as a whole number in its order; below, how far the
position is from the last one, so that of equals the first comes first and no two keys are equal.

    list    element e of the 32 x `depth` greatest keys so far lies in lane e % 32, register e // 32; greatest first
    queue   keys that may still enter the list; one comparison an element tells those that can't from all others

When 32 keys have come together they are sorted across the lanes, the greater of each pair with the list's last 32 stay
and are sorted in, all by bitonic networks (Batcher 1968). This way of selecting is known from FAISS (Johnson, Douze and
Jegou 2017, arXiv 1702.08734); here the queue is one a warp, filled by ballots, not one a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any

from cutlass import Boolean, Float32, Int32, Int64, cute

from ..common import math as m
from ..common.control import loop, when
from .reducers import tree

Value = Any
WARP = 32
BATCH = 16  # elements of a thread that may join the queue before it is looked at
NOTHING = -(2**63)  # less than all keys
LEAST_WORD = -(2**31)
LAST_POSITION = 2**32 - 1


@dataclass(frozen=True)
class KeyOrder:
    """How values of a dtype become keys: `op` is "largest" or "smallest", and NaN the greatest of values."""

    op: str
    source: str

    @property
    def floating(self) -> bool:
        return self.source in m.FLOATS

    def prepare(self, value: Value) -> Value:
        """The value as it is compared."""
        return m.cast(value, "f32" if self.floating else "i32")

    def word(self, value: Value) -> Value:
        """Greater for what comes earlier; both zeros are the same."""
        if self.floating:
            bits = m.select(value != value, Int32(0x7FFFFFFF), (value + Float32(0.0)).bitcast(Int32))
            value = bits ^ ((bits >> 31) & Int32(0x7FFFFFFF))
        return value if self.op == "largest" else value ^ Int32(-1)

    def key(self, value: Value, position: Value) -> Value:
        return (Int64(self.word(value)) << 32) | (Int64(LAST_POSITION) - Int64(position))

    def value(self, word: Value) -> Value:
        """What `word` was made of."""
        held = word if self.op == "largest" else word ^ Int32(-1)
        return (held ^ ((held >> 31) & Int32(0x7FFFFFFF))).bitcast(Float32) if self.floating else held

    def gate(self, word: Value) -> Value:
        """What `passes` compares with, for the word of a full list's last."""
        return self.value(word) if self.floating else m.select(word < 2**31 - 1, word + 1, word)

    @property
    def open_gate(self) -> Value:
        return Float32(nan) if self.floating else Int32(LEAST_WORD)

    def passes(self, value: Value, gate: Value) -> Value:
        """Whether the value may come before the list's last: surely, if it does, and for few others."""
        if not self.floating:
            return self.word(value) >= gate
        return m.negated(value <= gate if self.op == "largest" else value >= gate)


def word_of(key: Value) -> Value:
    return (key >> 32).to(Int32)


def position_of(key: Value) -> Value:
    return Int64(LAST_POSITION) - (key & Int64(LAST_POSITION))


def _greater(a: Value, b: Value) -> Value:
    return m.select(a > b, a, b)


def _lesser(a: Value, b: Value) -> Value:
    return m.select(a < b, a, b)


def _two_greatest(a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    """The greater pairs stand first."""
    return _greater(a[0], b[0]), _greater(_lesser(a[0], b[0]), _greater(a[1], b[1]))


def _exchanged(value: Value, offset: int, wants_greater: Value) -> Value:
    """The greater, or the lesser, of this lane's value and the value `offset` lanes away."""
    other = cute.arch.shuffle_sync_bfly(value, offset=offset)
    return m.select(Boolean(value > other) == wants_greater, value, other)


def ascending(value: Value) -> Value:
    """The warp's values, sorted: the least in lane 0."""
    lane = cute.arch.lane_idx()
    size = 2
    while size <= WARP:
        offset = size // 2
        while offset:
            low = Boolean((lane & Int32(offset)) == 0)
            up = Boolean((lane & Int32(size % WARP)) == 0)
            value = _exchanged(value, offset, low != up)
            offset //= 2
        size *= 2
    return value


def descending(registers: list[Value]) -> list[Value]:
    """A bitonic sequence over registers and lanes, sorted: the greatest in lane 0 of the first."""
    if len(registers) == 2:
        a, b = registers
        first = Boolean(a > b)
        registers = [m.select(first, a, b), m.select(first, b, a)]
    lane = cute.arch.lane_idx()
    offset = WARP // 2
    while offset:
        low = Boolean((lane & Int32(offset)) == 0)
        registers = [_exchanged(r, offset, low) for r in registers]
        offset //= 2
    return registers


class WarpRank:
    """The `count` first of what a warp was offered; `queue` points to its `queue_keys` cells in shared memory.

    All lanes must make all calls. Elements are to be offered in the order of their positions."""

    def __init__(self, order: KeyOrder, count: int, queue: Any) -> None:
        self.order, self.count, self.queue = order, count, queue
        self.depth = depth_of(count)
        self._list = cute.make_rmem_tensor((self.depth,), Int64)
        self._last = cute.make_rmem_tensor((1,), Int64)  # the list's count-th key; NOTHING: there is none yet
        self._bound = cute.make_rmem_tensor((1,), Int64)  # no lesser key is among the first
        self._gate = cute.make_rmem_tensor((1,), Float32 if order.floating else Int32)
        self._waiting = cute.make_rmem_tensor((1,), Int32)
        for register in range(self.depth):
            self._list[register] = Int64(NOTHING)
        self._last[0], self._bound[0] = Int64(NOTHING), Int64(NOTHING)
        self._gate[0] = order.open_gate
        self._waiting[0] = Int32(0)

    def offer(self, values: list[Value], valid: list[Value] | None, position: Callable[[int], Value]) -> None:
        """Take prepared values, at most BATCH of them; position(i) is that of the i-th."""
        gate = self._gate[0]
        may = [self.order.passes(value, gate) for value in values]
        if valid is not None:
            may = [m.both(ok, there) for ok, there in zip(may, valid, strict=True)]

        def take() -> None:
            when(self._last[0] == NOTHING, lambda: self._raise_bound(values, valid))
            for i, (value, ok) in enumerate(zip(values, may, strict=True)):
                self._enqueue_any(value, ok, position, i)
            self._sort_in()

        when(cute.arch.vote_any_sync(tree(may, m.either)), take)

    def _enqueue_any(self, value: Value, may: Value, position: Callable[[int], Value], i: int) -> None:
        def enqueue() -> None:
            key = self.order.key(value, position(i))
            fits = m.both(may, key >= self._bound[0])
            voters = cute.arch.vote_ballot_sync(fits)
            ahead = cute.arch.popc(voters & ((Int32(1) << cute.arch.lane_idx()) - 1))
            cell = self._waiting[0] + ahead
            when(fits, lambda: self._put(cell, key))
            self._waiting[0] = self._waiting[0] + cute.arch.popc(voters)

        when(cute.arch.vote_ballot_sync(may) != 0, enqueue)

    def _raise_bound(self, values: list[Value], valid: list[Value] | None) -> None:
        """Of a list of one register as many lanes as are wanted have something that is at least as great as this, of
        a list of two all lanes have two such."""
        words = [self.order.word(value) for value in values]
        if valid is not None:
            words = [m.select(ok, word, Int32(LEAST_WORD)) for word, ok in zip(words, valid, strict=True)]
        if self.depth == 1:
            sorted_words = ascending(tree(words, _greater))
            found = cute.arch.shuffle_sync(sorted_words, WARP - self.count)
        else:
            _, found = tree([(word, Int32(LEAST_WORD)) for word in words], _two_greatest)
            for offset in (16, 8, 4, 2, 1):
                found = _lesser(found, cute.arch.shuffle_sync_bfly(found, offset=offset))
        self._bound[0] = _greater(self._bound[0], Int64(found) << 32)

    def _put(self, cell: Any, key: Value) -> None:
        self.queue[cell] = key

    def _sort_in(self) -> None:
        """What waits, 32 at a time; all of it while the list is not full."""
        cute.arch.sync_warp()
        more = m.select(Boolean(self._last[0] == NOTHING), Int32(WARP - 1), Int32(0))
        loop(Int32(0), (self._waiting[0] + more) >> 5, lambda turn: self._sort_in_some())
        cute.arch.sync_warp()

    def _sort_in_some(self) -> None:
        waiting = self._waiting[0]
        start = m.select(waiting > WARP, waiting - WARP, Int32(0))
        cell = start + cute.arch.lane_idx()
        key = m.select(cell < waiting, self.queue[cell], Int64(NOTHING))
        self._waiting[0] = start
        when(cute.arch.vote_any_sync(m.both(key >= self._bound[0], key != NOTHING)), lambda: self._merge_keys(key))

    def _merge_keys(self, key: Value) -> None:
        nothing = [Int64(NOTHING)] * (self.depth - 1)
        self.merge([*nothing, ascending(key)])

    def merge(self, keys: list[Value]) -> None:
        """Another list, the least first: its register r and lane l has element 32 x depth - 1 - (32 r + l)."""
        mine = [self._list[r] for r in range(self.depth)]
        found = descending([_greater(a, b) for a, b in zip(mine, keys, strict=True)])
        for register, value in enumerate(found):
            self._list[register] = value
        self._last[0] = cute.arch.shuffle_sync(found[(self.count - 1) // WARP], (self.count - 1) % WARP)
        self._bound[0] = _greater(self._bound[0], self._last[0])

        def close() -> None:
            self._gate[0] = self.order.gate(word_of(self._last[0]))

        when(self._last[0] != NOTHING, close)

    def finish(self) -> None:
        """Take what still waits."""
        cute.arch.sync_warp()
        when(self._waiting[0] > 0, self._sort_in_some)
        cute.arch.sync_warp()

    def publish(self) -> None:
        """The list to the queue's cells, which are free after `finish`."""
        for register, key in enumerate(self.registers()):
            self.queue[cute.arch.lane_idx() + register * WARP] = key

    def registers(self) -> list[Value]:
        return [self._list[r] for r in range(self.depth)]


def depth_of(count: int) -> int:
    """Registers of a list of so many keys."""
    return -(-count // WARP)


def queue_keys(count: int) -> int:
    """Cells of a warp's queue: what a batch may bring beside what was left, or a list."""
    return max(WARP + WARP * BATCH, WARP * depth_of(count))
