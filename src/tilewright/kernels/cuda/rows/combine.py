"""Joins the states that threads hold: within a warp, a CTA, a cluster, or through a workspace in global memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
from cutlass import Float32, Float64, Int32, Int64, cute

from ..common import math as m
from ..common.control import loop, until, when
from ..common.math import larger
from .reducers import State, finite_shift, rescale

WARP = 32


def select_state(condition: Any, yes: State, no: State) -> State:
    return tuple(m.select(condition, a, b) for a, b in zip(yes, no, strict=True))


class Held:
    """A reduction's states of a thread, one per row lane, in register fragments (so that loops may update them);
    `reducer`: a Reducer or a Scanner."""

    def __init__(self, reducer: Any, lanes: int) -> None:
        self.reducer = reducer
        self.lanes = lanes
        self._fragments = [cute.make_rmem_tensor((lanes,), t) for t in reducer.types]
        for lane in range(lanes):
            self[lane] = reducer.identity()

    def __getitem__(self, lane: int) -> State:
        return tuple(f[lane] for f in self._fragments)

    def __setitem__(self, lane: int, state: State) -> None:
        for fragment, value in zip(self._fragments, state, strict=True):
            fragment[lane] = value

    def merge(self, lane: int, state: State) -> None:
        self[lane] = self.reducer.merge(self[lane], state)


class Board:
    """Shared memory for one reduction's states: `cells` of each component."""

    def __init__(self, allocator: Any, reducer: Any, cells: int) -> None:
        layout = cute.make_layout((cells,))
        self._arrays = [allocator.allocate_tensor(t, layout, byte_alignment=16) for t in reducer.types]

    def put(self, cell: Any, state: State) -> None:
        for array, value in zip(self._arrays, state, strict=True):
            array[cell] = value

    def get(self, cell: Any) -> State:
        return tuple(array[cell] for array in self._arrays)


def _exchange(state: State, width: int, merge: Callable[[State, State], State]) -> State:
    """merge over each segment of `width` lanes, in a butterfly."""
    offset = 1
    while offset < width:
        state = merge(state, tuple(cute.arch.shuffle_sync_bfly(v, offset=offset) for v in state))
        offset *= 2
    return state


def butterfly(held: Held, width: int) -> None:
    """Every lane of each segment of `width` lanes gets the segment's state, the same to the last bit."""
    reducer = held.reducer
    state = held[0]
    if reducer.op == "softmax_stats":  # one scaling a lane, as in `merge_all`
        highest = _exchange((state[0],), width, lambda a, b: (larger(a[0], b[0]),))[0]
        total = state[1] * rescale(state[0] - finite_shift(highest))
        held[0] = (highest, _exchange((total,), width, lambda a, b: (a[0] + b[0],))[0])
        return
    if reducer.op == "moments" and width > 2:  # one division in all, where merging takes one a step
        held[0] = _pool_moments(state, width)
        return
    state = _exchange(state, width, reducer.merge)
    if width > 1 and len(state) > 1:  # merging in another order rounds otherwise
        first = cute.arch.lane_idx() & Int32(WARP - width)
        state = tuple(cute.arch.shuffle_sync(v, first) for v in state)
    held[0] = state


def _pool_moments(state: State, width: int) -> State:
    """Moments of each segment of lanes: its mean first, relative to the first lane's, which keeps what is summed small;
    then what the lanes' own means deviate from it."""

    def total(value: Any) -> Any:
        return _exchange((value,), width, lambda a, b: (a[0] + b[0],))[0]

    count, mean, deviations = state
    start = cute.arch.shuffle_sync(mean, cute.arch.lane_idx() & Int32(WARP - width))
    everything = total(count)
    away = m.select(count > Float32(0.0), mean - start, Float32(0.0))
    shift = total(count * away) / m.select(everything > Float32(0.0), everything, Float32(1.0))
    return (everything, start + shift, total(deviations + count * (away - shift) * (away - shift)))


def combine_rows(helds: list[Held], boards: list[Board | None], *, group: Any, member: Any, group_threads: int) -> None:
    """Threads `group_threads x group ... + group_threads` hold parts of one row; all of them get the whole.

    ColumnGroups wider than a warp need boards of `groups x warps` cells, and all of the CTA's threads must come
    here."""
    for held in helds:
        butterfly(held, min(group_threads, WARP))
    warps = group_threads // WARP
    if warps <= 1:
        return
    first = cute.arch.lane_idx() == 0
    for held, board in zip(helds, _given(boards), strict=True):
        when(first, partial(board.put, group * warps + member // WARP, held[0]))
    cute.arch.sync_threads()
    for held, board in zip(helds, _given(boards), strict=True):
        held[0] = board.get(group * warps + cute.arch.lane_idx() % warps)
        butterfly(held, warps)


def _given(boards: list[Board | None]) -> list[Board]:
    found = [board for board in boards if board is not None]
    assert len(found) == len(boards)
    return found


def combine_columns(
    helds: list[Held], boards: list[Board | None], *, group: Any, member: Any, group_threads: int, groups: int
) -> None:
    """Members 0 .. group_threads - 1 of each group hold parts of `lanes` rows; all of them get the whole.

    Needs boards of `group_threads x groups x lanes` cells."""
    if group_threads == 1:
        return
    for held, board in zip(helds, _given(boards), strict=True):
        for lane in range(held.lanes):
            board.put((member * held.lanes + lane) * groups + group, held[lane])
    cute.arch.sync_threads()
    for held, board in zip(helds, _given(boards), strict=True):
        for lane in range(held.lanes):
            parts = [board.get((other * held.lanes + lane) * groups + group) for other in range(group_threads)]
            held[lane] = held.reducer.merge_all(parts)


class Workspace:
    """Global memory for one reduction's states, `[chunk][row]` for each component."""

    def __init__(self, reducer: Any, *, rows: int, chunks: int, offset: int) -> None:
        self.reducer = reducer
        self.rows = rows
        self.chunks = chunks
        self._offsets = []
        for kind in reducer.types:
            self._offsets.append(offset)
            offset += -(-rows * chunks * kind.width // 8 // 16) * 16
        self.end = offset

    def _cell(self, work: Any, component: int, chunk: Any, row: Any) -> Any:
        kind = self.reducer.types[component]
        base = cute.recast_ptr(work.iterator + self._offsets[component], dtype=kind)
        return cute.make_tensor(base + (Int64(chunk) * self.rows + Int64(row)), cute.make_layout((1,)))

    def put(self, work: Any, chunk: Any, row: Any, state: State) -> None:
        for component, value in enumerate(state):
            self._cell(work, component, chunk, row)[0] = value

    def get(self, work: Any, chunk: Any, row: Any) -> State:
        return tuple(self._cell(work, c, chunk, row)[0] for c in range(len(self.reducer.types)))

    def gather(self, work: Any, held: Held, *, row: Any, member: Any, group_threads: int) -> None:
        """Each member merges every group_threads-th chunk of its rows."""
        identity = held.reducer.identity()

        def body(turn: Any) -> None:
            chunk = turn * group_threads + member
            nearest = cutlass.min(chunk, self.chunks - 1)
            for lane in range(held.lanes):
                state = self.get(work, nearest, row + lane)
                held.merge(lane, select_state(chunk < self.chunks, state, identity))

        loop(Int32(0), Int32(-(-self.chunks // group_threads)), body)


class Mailboxes:
    """Global memory through which the CTAs of a team tell one another a reduction's states, without fences or counters:
    each word travels with the number of its turn, in one store of 64 bits, and the reader waits for that number.

    Zero at launch. A box is used again after four turns: a CTA tells turn t at the earliest when it has heard turn
    t - 2 of all, which they told at the earliest when they had heard turn t - 4 (see `Plan.ahead`)."""

    DEPTH = 4

    def __init__(self, reducer: Any, *, teams: int, chunks: int, offset: int) -> None:
        self.types, self.chunks = reducer.types, chunks
        self._offset = offset
        self._words = sum(_words_of(kind) for kind in self.types)
        self.end = offset + teams * self.DEPTH * self._words * chunks * 8

    def _box(self, work: Any, *, team: Any, turn: Any) -> Any:
        """An array of words, [word][chunk]."""
        number = (team * self.DEPTH + turn % self.DEPTH) * self._words * self.chunks
        return cute.recast_ptr(work.iterator + self._offset, dtype=Int64) + number

    def put(self, work: Any, state: State, *, team: Any, turn: Any, chunk: Any) -> None:
        box = self._box(work, team=team, turn=turn)
        words = [word for value in state for word in _split(value)]
        for number, word in enumerate(words):
            stamped = ((Int64(turn) + 1) << 32) | (Int64(word) & 0xFFFFFFFF)
            cute.arch.store(box + (number * self.chunks + chunk), stamped, sem="relaxed", scope="gpu")

    def get(self, work: Any, *, team: Any, turn: Any, chunk: Any) -> State:
        """What `chunk` told in this turn, once it is there."""
        box = self._box(work, team=team, turn=turn)
        found = cute.make_rmem_tensor((self._words,), Int32)

        def read() -> Any:
            stamped = []
            for number in range(self._words):
                place = box + (number * self.chunks + chunk)
                stamped.append(cute.arch.load(place, Int64, sem="relaxed", scope="gpu"))
            missing = Int32(0)
            for number, word in enumerate(stamped):
                missing = missing | (Int32(word >> 32) ^ (turn + 1))
                found[number] = Int32(word)
            return missing

        until(read)
        words = [found[number] for number in range(self._words)]
        state = []
        for kind in self.types:
            state.append(_join(kind, words[: _words_of(kind)]))
            words = words[_words_of(kind) :]
        return tuple(state)


def _words_of(kind: Any) -> int:
    return 2 if kind.width == 64 else 1


def _split(value: Any) -> list[Any]:
    """The words of 32 bits of a state's component, lowest first."""
    if value.dtype is Float32:
        return [value.bitcast(Int32)]
    if value.dtype is Float64:
        value = value.bitcast(Int64)
    return [Int32(value)] if value.dtype.width <= 32 else [Int32(value), Int32(value >> 32)]


def _join(kind: Any, words: list[Any]) -> Any:
    if kind is Float32:
        return words[0].bitcast(Float32)
    if len(words) == 1:
        return kind(words[0])
    whole = (Int64(words[1]) << 32) | (Int64(words[0]) & 0xFFFFFFFF)
    return whole.bitcast(Float64) if kind is Float64 else whole
