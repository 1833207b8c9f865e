"""Attention's skeleton without a GPU: its order of tiles, its barriers, its arithmetic in emulated lanes, and what it
compiles to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.kernels.cuda.attention import combine as combine_module
from tilewright.kernels.cuda.attention import scores as scores_module
from tilewright.kernels.cuda.attention import softmax as softmax_module
from tilewright.kernels.cuda.attention.kernel import PLANES, SHIFT
from tilewright.kernels.cuda.attention.order import TileOrder
from tilewright.kernels.cuda.attention.protocol import QUERIES, RingProtocol
from tilewright.kernels.cuda.attention.scores import ScoreMap, ScoreOperand
from tilewright.kernels.cuda.attention.shape import AttentionShape, BatchStep, Layers, layer_of
from tilewright.kernels.cuda.attention.softmax import LOG2_E, OnlineScale, OnlineSoftmax
from tilewright.kernels.cuda.attention.tiles import DEFAULTS, KNOBS, AttentionPoint, make_point, padded

Diagonals = tuple[int | None, int | None]


def shape_of(
    domain: tuple[int, ...], keys: int, depth: int = 32, *, visible: Diagonals = (None, None), spares: bool = True
) -> AttentionShape:  # fmt: skip
    """Of a batch of any dimensions, then queries and columns."""
    row = len(domain) - 2
    layers = Layers(batch=tuple(BatchStep(dim=d, each=1, size=domain[d]) for d in range(row)), at=row)
    return AttentionShape(domain=domain, row=row, keys=keys, depth=depth, query=layers, key=layers, value=layers,
                          visible=visible, spares=spares)  # fmt: skip


# ---- which tiles, and in which order

VISIBLE: tuple[Diagonals, ...] = ((None, None), (None, 0), (-9, 0), (-70, 5), (3, None), (None, -20), (300, None))


@pytest.mark.parametrize("visible", VISIBLE)
def test_visited_tiles_hold_all_that_is_visible_and_unmasked_ones_nothing_else(visible: Diagonals) -> None:
    low, high = (-math.inf if visible[0] is None else visible[0]), (math.inf if visible[1] is None else visible[1])
    for rows, keys, tile_n in itertools.product((1, 64, 130, 257), (1, 65, 128, 301), (32, 80)):
        order = TileOrder(shape=shape_of((rows, 32), keys, visible=visible), tile_m=64, tile_n=tile_n)
        apart = np.arange(keys)[None, :] - np.arange(rows)[:, None]
        seen = (apart >= low) & (apart <= high)
        for tile in range(order.row_tiles):
            own = seen[tile * 64 : tile * 64 + 64]
            first, last = order.visited(tile)
            assert 0 <= first < last <= order.key_tiles
            assert not own[:, : first * tile_n].any() and not own[:, last * tile_n :].any()
            begin, end = order.unmasked(tile)
            for t in range(max(begin, first), min(end, last)):
                assert (t + 1) * tile_n <= keys and own[:, t * tile_n : (t + 1) * tile_n].all()


def test_as_many_tiles_are_skipped_as_can_be() -> None:
    order = TileOrder(shape=shape_of((1024, 64), 1024, visible=(None, 0)), tile_m=128, tile_n=128)
    assert [order.visited(t) for t in range(8)] == [(0, t + 1) for t in range(8)]
    assert [order.unmasked(t) for t in range(8)] == [(0, t) for t in range(8)]
    whole = TileOrder(shape=shape_of((1024, 64), 1024, visible=(None, 0), spares=False), tile_m=128, tile_n=128)
    assert {whole.visited(t) for t in range(8)} == {(0, 8)}


@pytest.mark.parametrize("domain", [(1, 64), (5, 130, 64), (3, 7, 1000, 128), (40, 2, 4096, 256)])
@pytest.mark.parametrize("visible", [(None, None), (None, 0)])
def test_every_tile_is_one_ctas(domain: tuple[int, ...], visible: Diagonals) -> None:
    order = TileOrder(shape=shape_of(domain, 4096, visible=visible), tile_m=128, tile_n=128)
    places = {order.place(number) for number in range(order.work)}
    assert places == set(itertools.product(range(order.row_tiles), range(order.shape.batches)))


def test_indices_and_layers_count_as_the_domain_does() -> None:
    shape = shape_of((3, 4, 10, 32), 16)
    found = [tuple(shape.indices(n).values()) for n in range(12)]
    assert [f[::-1] for f in found] == list(itertools.product(range(3), range(4)))
    grouped = (BatchStep(dim=0, each=1, size=3), BatchStep(dim=1, each=2, size=2))
    assert [layer_of(grouped, {0: 1, 1: h}) for h in range(4)] == [(1, 0), (1, 0), (1, 1), (1, 1)]


# ---- barriers


@dataclass
class Agent:
    """What one warp does, in order: ("wait", barrier, parity), ("arrive", barrier), ("load", what, barrier), or
    ("use", what it reads)."""

    steps: list[tuple[Any, ...]] = field(default_factory=list)

    def wait(self, barrier: int, parity: int) -> None:
        self.steps.append(("wait", barrier, parity))

    def queries(self, barrier: int) -> None:
        self.steps.append(("load", ("queries", 0), 0, barrier))

    def keys(self, tile: int, stage: int, barrier: int) -> None:
        self.steps.append(("load", ("keys", stage), tile, barrier))

    def values(self, tile: int, stage: int, barrier: int) -> None:
        self.steps.append(("load", ("values", stage), tile, barrier))

    def free(self, barrier: int) -> None:
        self.steps.append(("arrive", barrier))

    def begin_scores(self, stage: int) -> None:
        self.steps.append(("begin", ("keys", stage)))

    def begin_results(self, stage: int) -> None:
        self.steps.append(("begin", ("values", stage)))

    def settle(self, pending: int) -> None:
        self.steps.append(("settle", pending))

    def weigh(self, tile: int) -> None:
        self.steps.append(("weigh", tile))

    def rescale(self) -> None:
        self.steps.append(("rescale",))


def plainly(first: int, last: int, body: Callable[[int], None]) -> None:
    for i in range(first, last):
        body(i)


class Barrier:
    """An mbarrier: waiting for a parity passes while the phase in progress has the other one."""

    def __init__(self, count: int) -> None:
        self.count, self.missing, self.phase = count, count, 0

    def arrive(self) -> None:
        assert self.missing > 0
        self.missing -= 1
        if self.missing == 0:
            self.phase, self.missing = self.phase + 1, self.count

    def passes(self, parity: int) -> bool:
        return self.phase % 2 != parity


class Cta:
    """Its warps by turns; loads come at any time. Every product must find the tile that it wants, whole, until it is
    done."""

    def __init__(self, protocol: RingProtocol, groups: int, span: tuple[int, int], seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.barriers = [Barrier(count) for count in protocol.arrivals(groups)]
        loader = Agent()
        protocol.load(loader, span, plainly)
        self.agents = [loader]
        for _ in range(groups):
            self.agents.append(Agent())
            protocol.multiply(self.agents[-1], span, plainly)
        self.places = [0] * (groups + 1)
        self.coming: list[tuple[Any, int, int]] = []
        self.held: dict[Any, Any] = {}  # what a stage holds; None while it is written
        self.at_work: list[list[tuple[Any, int]]] = [[] for _ in range(groups + 1)]
        self.used: list[list[tuple[str, int]]] = [[] for _ in range(groups + 1)]

    def run(self) -> None:
        while any(place < len(agent.steps) for place, agent in zip(self.places, self.agents, strict=True)):
            able = [i for i in range(len(self.agents)) if self._able(i)]
            if self.coming and (not able or self.random.random() < 0.3):
                place, tile, barrier = self.coming.pop(self.random.integers(len(self.coming)))
                self.held[place] = tile
                self.barriers[barrier].arrive()
                continue
            assert able, "nobody can go on"
            self._step(int(self.random.choice(able)))

    def _able(self, i: int) -> bool:
        steps, place = self.agents[i].steps, self.places[i]
        if place == len(steps):
            return False
        step = steps[place]
        return step[0] != "wait" or self.barriers[step[1]].passes(step[2])

    def _step(self, i: int) -> None:
        kind, *rest = self.agents[i].steps[self.places[i]]
        self.places[i] += 1
        if kind == "load":
            place, tile, barrier = rest
            assert all(place != used for work in self.at_work for used, _ in work), (
                "a stage is written while it is read"
            )
            self.held[place] = None
            self.coming.append((place, tile, barrier))
        elif kind == "arrive":
            self.barriers[rest[0]].arrive()
        elif kind == "begin":
            assert self.held[rest[0]] is not None and self.held["queries", 0] == 0
            self.at_work[i].append((rest[0], self.held[rest[0]]))
        elif kind == "settle":
            while len(self.at_work[i]) > rest[0]:
                place, tile = self.at_work[i].pop(0)
                assert self.held[place] == tile, "a stage changed while it was read"
                self.used[i].append((place[0], tile))
        elif kind == "weigh":
            assert ("keys", rest[0]) in self.used[i] and all(p[0] != "keys" for p, _ in self.at_work[i])
        elif kind == "rescale":
            assert not self.at_work[i], "what wgmma writes, and reads, is changed"


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_nobody_waits_for_ever_and_every_product_finds_its_tile(stages: int, groups: int) -> None:
    protocol = RingProtocol(stages=stages)
    for (first, tiles), seed in itertools.product(((0, 1), (3, 2), (0, 3), (1, 9)), range(3)):
        cta = Cta(protocol, groups, (first, first + tiles), seed)
        cta.run()
        for used in cta.used[1:]:
            for kind in ("keys", "values"):
                assert [tile for what, tile in used if what == kind] == [*range(first, first + tiles)]


def test_a_stage_that_is_not_waited_for_is_seen_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation finds what it is for."""
    monkeypatch.setattr(RingProtocol, "free", lambda self, of, stage: QUERIES)
    with pytest.raises(AssertionError):
        for seed in range(8):
            Cta(RingProtocol(stages=1), 1, (0, 6), seed).run()


def test_barriers_have_numbers_of_their_own() -> None:
    for stages in (1, 3):
        p = RingProtocol(stages=stages)
        own = [f(of, s) for f in (p.full, p.free) for of in (0, 1) for s in range(stages)]
        assert sorted([QUERIES, *own]) == list(range(p.barriers))
        counts = p.arrivals(8)
        assert all(counts[p.full(of, s)] == 1 and counts[p.free(of, s)] == 8 for of in (0, 1) for s in range(stages))


# ---- arithmetic, 128 lanes at a time


class Fragment:
    """Registers of all lanes of a warpgroup: one vector for each."""

    def __init__(self, size: int, kind: Any = np.float32) -> None:
        self.kind = kind
        self.values = [np.zeros(128, kind) for _ in range(size)]

    def fill(self, value: float) -> None:
        self.values = [np.full(128, value, self.kind) for _ in self.values]

    def __getitem__(self, i: int) -> np.ndarray[Any, Any]:
        return self.values[i]

    def __setitem__(self, i: int, value: Any) -> None:
        self.values[i] = np.broadcast_to(np.asarray(value, self.kind), 128).copy()


class Memory:
    """A flat tensor, and a place in it of each lane."""

    def __init__(self, array: np.ndarray[Any, Any], at: Any = 0) -> None:
        self.array, self.at = array, at
        self.iterator = self

    def __add__(self, offset: Any) -> Memory:
        return Memory(self.array, self.at + offset)

    def __getitem__(self, i: int) -> Any:
        return np.broadcast_to(self.array[self.at + i], 128)

    def __setitem__(self, i: int, value: Any) -> None:
        self.array[self.at + i] = value


def exponent_of(bits: Any) -> Any:
    """What brings a magnitude with these bits into [2^14, 2^15), as the convolution's skeleton has it."""
    value = np.asarray(bits, np.int32).view(np.float32)
    exponent = 14 - np.floor(np.log2(np.where(value > 0, value, 1))).astype(np.int32)
    return np.clip(np.where(value > 0, exponent, 0), -126, 126)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The skeleton's scalars are vectors of lanes, and its memory is numpy's."""
    lane = np.arange(128)
    cute = SimpleNamespace(
        make_rmem_tensor=lambda shape, kind: Fragment(math.prod(shape), kind), size=lambda f: len(f.values),
        make_tensor=lambda pointer, layout: pointer, make_layout=lambda shape: shape,
        arch=SimpleNamespace(fmax=np.fmax, shuffle_sync_bfly=lambda x, offset: x[lane ^ offset]),
        math=SimpleNamespace(log2=np.log2),
    )  # fmt: skip
    m = SimpleNamespace(
        select=np.where, smaller=np.minimum, larger=np.maximum, stored=lambda x, dtype: x,
        cast=lambda x, dtype: np.asarray(x, np.float32),
    )  # fmt: skip
    for module in (softmax_module, scores_module, combine_module):
        monkeypatch.setattr(module, "cute", cute)
        monkeypatch.setattr(module, "m", m)
        monkeypatch.setattr(module, "Float32", np.float32)
        monkeypatch.setattr(module, "Int32", np.int32)
    for module in (scores_module, combine_module):
        monkeypatch.setattr(module, "Int64", np.int64)
    monkeypatch.setattr(softmax_module, "magnitude", lambda x: np.abs(x).view(np.int32))
    monkeypatch.setattr(softmax_module, "finite", lambda bits: np.where(bits < 0x7F800000, bits, 0))
    monkeypatch.setattr(softmax_module, "power_of_two", lambda e: np.exp2(np.asarray(e, np.float32)))
    monkeypatch.setattr(softmax_module, "scale_exponent", exponent_of)
    monkeypatch.setattr(combine_module, "exp2", np.exp2)
    monkeypatch.setattr(combine_module, "when", lambda condition, body: body())
    monkeypatch.setattr(softmax_module, "exp2", np.exp2)
    monkeypatch.setattr(softmax_module, "fused", lambda x, y, z: x * y + z)


def places(tile_n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The row and the column of each register's element of each lane, as wgmma lays out a sum of 64 x tile_n."""
    lane = np.arange(128)
    i = np.arange(tile_n // 2)[:, None]
    rows = lane // 32 * 16 + lane % 32 // 4 + 8 * (i // 2 % 2)
    columns = i // 4 * 8 + lane % 4 * 2 + i % 2
    return np.broadcast_to(rows, (tile_n // 2, 128)), np.broadcast_to(columns, (tile_n // 2, 128))


def planes_of(x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
    """hi, lo and the exponent of the power of two that scales a layer, as `prepare` has them."""
    exponent = 14 - int(np.floor(np.log2(np.abs(x).max())))
    scaled = (x * 2.0**exponent).astype(np.float32)
    high = scaled.astype(np.float16).astype(np.float32)
    return high, (scaled - high).astype(np.float16).astype(np.float32), exponent


def multiplied(left: list[np.ndarray[Any, Any]], right: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """The products of planes, small terms first, rounded to fp32 after every 16 of K as the tensor cores may."""
    total = np.zeros((left[0].shape[0], right[0].shape[1]), np.float32)
    for a, b in PLANES if len(left) == 2 else ((0, 0),):
        for k in range(0, left[a].shape[1], 16):
            step = left[a][:, k : k + 16].astype(np.float64) @ right[b][k : k + 16].astype(np.float64)
            total = (total + step).astype(np.float32)
    return total


class Emulated:
    """A `protocol.MultiplyingRole` whose products are numpy's, and whose softmax and scores are the skeleton's."""

    def __init__(self, run: Run, batch: int, tile: int, part: int = 0) -> None:
        self.run, self.batch, self.tile, self.part = run, batch, tile, part
        self.sums = Fragment(run.tile_n // 2)
        self.results = Fragment(run.value.shape[-1] // 2)
        factor = np.float32(run.scale * LOG2_E)
        self.by = np.ones(1, np.float32)
        self.planes: dict[str, tuple[np.ndarray[Any, Any], ...]] = {}
        if run.split:
            exponents = {}
            for name in ("query", "key", "value"):
                *self.planes[name], exponents[name] = planes_of(getattr(run, name)[batch])
            factor = factor * np.float32(2.0 ** -(exponents["query"] + exponents["key"]))
            self.by = np.float32(2.0 ** -exponents["value"])
        self.scale: Any = np.float32(factor / np.float32(run.scale * LOG2_E)) if run.split else None
        self.softmax: Any = OnlineSoftmax(factor, shift=SHIFT if run.split else 0) if run.softmax else OnlineScale()
        self.rows = [tile * 64 + places(8)[0][2 * r] for r in range(2)]
        first, last = run.order.visited(tile)
        count = last - first
        self.span = (first + count * part // run.parts, first + count * (part + 1) // run.parts)
        self.tiles = [iter(range(*self.span)) for _ in range(2)]  # of keys and of values, in their order
        self.begun: list[Callable[[], None]] = []
        self.weights: Any = None

    def wait(self, barrier: int, parity: int) -> None: ...

    def free(self, barrier: int) -> None: ...

    def _block(self, x: np.ndarray[Any, Any], first: int, count: int) -> np.ndarray[Any, Any]:
        """Rows of a matrix, zeros behind the last."""
        found = np.zeros((count, x.shape[1]), x.dtype)
        inside = x[first : first + count]
        found[: len(inside)] = inside
        return found

    def _planes(self, name: str, first: int, count: int) -> list[np.ndarray[Any, Any]]:
        whole = self.planes.get(name, [getattr(self.run, name)[self.batch]])
        return [self._block(x, first, count) for x in whole]

    def begin_scores(self, stage: int) -> None:
        tile = next(self.tiles[0])
        q, k = self._planes("query", self.tile * 64, 64), self._planes("key", tile * self.run.tile_n, self.run.tile_n)
        product = multiplied(q, [x.T for x in k])

        def done() -> None:
            self.sums.values = list(product[places(self.run.tile_n)])

        self.begun.append(done)

    def begin_results(self, stage: int) -> None:
        run = self.run
        weights = np.zeros((64, run.tile_n), np.float32)
        weights[places(run.tile_n)] = self.weights
        value = self._planes("value", next(self.tiles[1]) * run.tile_n, run.tile_n)
        high = weights.astype(np.float16).astype(np.float32)
        parts = [high, (weights - high).astype(np.float16).astype(np.float32)] if run.split else [weights]
        product = multiplied(parts, value)
        size = product.shape[1]

        def done() -> None:
            self.results.values = [a + b for a, b in zip(self.results.values, product[places(size)], strict=True)]

        self.begun.append(done)

    def settle(self, pending: int) -> None:
        while len(self.begun) > pending:
            self.begun.pop(0)()

    def weigh(self, tile: int) -> None:
        run = self.run
        first = tile * run.tile_n + places(8)[1][0]
        low, high = run.order.unmasked(self.tile)
        masked = not (run.order.masks and low <= tile < high)
        scale = None if run.softmax else self.scale
        run.map.apply(self.sums, ({0: self.batch}, self.rows, first), run.operands, masked=masked, scale=scale)
        if run.softmax or run.split:
            self.softmax.weigh(self.sums)

    def rescale(self) -> None:
        if self.run.softmax or self.run.split:
            for i in range(len(self.results.values)):
                self.results[i] = self.results[i] * self.softmax.onto[i // 2 % 2]
        self.weights = np.stack(self.sums.values)

    def finish(self, out: np.ndarray[Any, Any], logarithms: np.ndarray[Any, Any]) -> None:
        run = self.run
        rows, columns = places(out.shape[-1])
        empty = run.empty_is_zero or run.parts > 1
        sinks = [None if run.sink is None or self.part else np.float32(run.sink)] * 2
        if run.sink is not None and self.part:
            sinks = [np.float32(-np.inf)] * 2
        made = [self.softmax.finish(r, empty_is_zero=empty, sink=sinks[r]) for r in range(2)]
        for i, value in enumerate(self.results.values):
            by, logarithm = made[i // 2 % 2] if run.softmax or run.split else (np.ones(128), None)
            row = self.tile * 64 + rows[i]
            inside = row < out.shape[1]
            out[self.batch, row[inside], columns[i][inside]] = (value * by * self.by)[inside]
            if logarithm is not None:
                logarithms[self.batch, row[inside]] = np.broadcast_to(logarithm, 128)[inside]


@dataclass
class Run:
    query: np.ndarray[Any, Any]
    key: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]
    tile_n: int = 32
    stages: int = 2
    scale: float = 0.25
    whole: Any = None
    inner: Any = None
    operands: tuple[Memory, ...] = ()
    described: tuple[ScoreOperand, ...] = ()
    visible: Diagonals = (None, None)
    softmax: bool = True
    empty_is_zero: bool = False
    split: bool = False  # as fp16x3 has it
    parts: int = 1
    sink: float | None = None
    logarithms: Any = None
    wanted: Any = None  # of these

    def __post_init__(self) -> None:
        batch, rows, _ = self.query.shape
        shape = shape_of((batch, rows, self.value.shape[-1]), self.key.shape[1], visible=self.visible)
        self.order = TileOrder(shape=shape, tile_m=64, tile_n=self.tile_n)
        outside = -math.inf if self.softmax else 0.0
        self.map = ScoreMap(shape, self.tile_n, (self.whole, self.inner), self.described, outside)

    def result(self) -> np.ndarray[Any, Any]:
        """The result; `logarithms` are those of the softmax's sums."""
        shape = (*self.query.shape[:2], self.value.shape[-1])
        outs, logarithms = np.full((self.parts, *shape), 7.0), np.full((self.parts, *shape[:-1]), 7.0)
        for number, part in itertools.product(range(self.order.work), range(self.parts)):
            tile, batch = self.order.place(number)
            own = Emulated(self, batch, tile, part)
            RingProtocol(stages=self.stages).multiply(own, own.span, plainly)
            own.finish(outs[part], logarithms[part])
        self.logarithms = logarithms[0]
        return outs[0] if self.parts == 1 else self._combined(outs, logarithms)

    def _combined(self, outs: np.ndarray[Any, Any], logarithms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        kernel = combine_module.CombineParts(
            self.order.shape, self.parts, dtype="f32", softmax=self.softmax, empty_is_zero=self.empty_is_zero
        )
        size, rows = outs[0].size, logarithms[0].size
        room = np.zeros(128)  # lanes behind the last read, and write, something, too
        given = [Memory(np.concatenate([x.reshape(-1).astype(np.float32), room])) for x in (outs, logarithms)]
        made = [Memory(np.zeros(n + 128, np.float32)) for n in (size, rows)]
        for cta in range(-(-size // 128)):
            combine_module.cute.arch.block_idx = lambda cta=cta: (cta,)
            combine_module.cute.arch.thread_idx = lambda: (np.arange(128),)
            kernel._one(*given, made)
        self.logarithms = made[1].array[:rows].reshape(logarithms[0].shape)
        return made[0].array[:size].reshape(outs[0].shape)


def reference(run: Run, scores: Callable[[Any], Any]) -> np.ndarray[Any, Any]:
    product = np.einsum("bmd,bnd->bmn", run.query.astype(np.float64), run.key.astype(np.float64))
    weights = scores(product * run.scale if run.scale != 1.0 or run.softmax else product)
    if run.softmax:
        with np.errstate(invalid="ignore"):
            largest = np.maximum(weights.max(-1, keepdims=True), -np.inf if run.sink is None else run.sink)
            power = np.exp(weights - largest)
            total = power.sum(-1, keepdims=True) + (0 if run.sink is None else np.exp(run.sink - largest))
            run.wanted = (np.log(total) + largest)[..., 0]
            weights = power / total
        weights = np.nan_to_num(weights) if run.empty_is_zero else weights
    found: np.ndarray[Any, Any] = weights @ run.value.astype(np.float64)
    return found


def given(rows: int, keys: int, *, largest: float = 1.0) -> dict[str, np.ndarray[Any, Any]]:
    make = np.random.default_rng(rows * keys)
    return {
        "query": (make.standard_normal((2, rows, 16)) * largest).astype(np.float32),
        "key": make.standard_normal((2, keys, 16)).astype(np.float32),
        "value": make.standard_normal((2, keys, 24)).astype(np.float32),
    }


def seen(low: float, high: float) -> tuple[Any, Callable[[Any], Any]]:
    """A mask of diagonals, as a map of the skeleton, and of float64."""

    def whole(score: Any, index_1: Any, index_2: Any) -> Any:
        return np.where((index_2 - index_1 >= low) & (index_2 - index_1 <= high), score, np.float32(-np.inf))

    def scores(product: Any) -> Any:
        apart = np.arange(product.shape[2])[None, :] - np.arange(product.shape[1])[:, None]
        return np.where((apart >= low) & (apart <= high), product, -np.inf)

    return whole, scores


@pytest.mark.usefixtures("lanes")
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")
@pytest.mark.parametrize(("rows", "keys"), [(64, 64), (1, 33), (130, 101), (65, 16)])
@pytest.mark.parametrize("visible", [(None, None), (None, 0), (-9, 4), (20, None)])
@pytest.mark.parametrize("empty", [False, True])
def test_emulated_lanes_give_what_float64_gives(rows: int, keys: int, visible: Diagonals, empty: bool) -> None:
    """Rows that see nothing are among them: they give NaN, or zeros."""
    whole, scores = seen(
        -math.inf if visible[0] is None else visible[0], math.inf if visible[1] is None else visible[1]
    )
    unseen = visible == (None, None)
    run = Run(**given(rows, keys, largest=4.0), visible=visible, whole=None if unseen else whole, empty_is_zero=empty)
    np.testing.assert_allclose(run.result(), reference(run, scores), rtol=2e-5, atol=2e-6)


@pytest.mark.usefixtures("lanes")
def test_a_bias_is_read_where_it_lies() -> None:
    factors = given(70, 45)
    bias = np.random.default_rng(1).standard_normal((70, 45)).astype(np.float32)

    def whole(score: Any, bias: Any) -> Any:
        return score + bias

    described = (ScoreOperand(name="bias", dtype="f32", strides=(0, 45, 1)),)
    run = Run(**factors, whole=whole, inner=whole, operands=(Memory(bias.reshape(-1)),), described=described, scale=1.0)
    np.testing.assert_allclose(run.result(), reference(run, lambda s: s + bias), rtol=2e-5, atol=2e-6)


@pytest.mark.usefixtures("lanes")
def test_large_scores_and_those_of_one_row_that_are_all_low_change_nothing() -> None:
    factors = given(64, 96)
    factors["query"][:, 3] *= 900.0
    run = Run(**factors, scale=1.0, stages=1)
    np.testing.assert_allclose(run.result(), reference(run, lambda s: s), rtol=2e-4, atol=2e-5)


@pytest.mark.usefixtures("lanes")
def test_scores_that_nothing_normalises() -> None:
    def whole(score: Any) -> Any:
        return np.maximum(score, np.float32(0.0))

    run = Run(**given(70, 45), whole=whole, inner=whole, scale=1.0, softmax=False)
    np.testing.assert_allclose(run.result(), reference(run, lambda s: np.maximum(s, 0)), rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("largest", [0.01, 1.0, 30.0])
def test_three_products_of_pairs_err_less_than_fp32_itself(largest: float) -> None:
    """The contract allows twice the error of the module's own arithmetic."""
    run = Run(**given(64, 700, largest=largest), tile_n=64, split=True)
    truth = reference(run, lambda s: s)
    product = np.einsum("bmd,bnd->bmn", run.query, run.key) * np.float32(run.scale)
    power = np.exp(product - product.max(-1, keepdims=True))
    own = (power / power.sum(-1, keepdims=True)) @ run.value
    errors = [np.linalg.norm(x - truth) / np.linalg.norm(truth) for x in (run.result(), own)]
    assert errors[0] < max(1.5 * errors[1], 4e-7)


@pytest.mark.usefixtures("lanes")
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")
@pytest.mark.parametrize("sink", [None, -40.0, 0.5, 40.0])
@pytest.mark.parametrize(("parts", "visible", "split"), [
    (1, (None, None), False), (3, (None, None), True), (3, (-9, 4), False), (4, (20, None), False),
])  # fmt: skip
def test_sinks_and_shared_keys_give_what_float64_gives(
    sink: float | None, parts: int, visible: Diagonals, split: bool
) -> None:
    """Parts that see nothing of a row are among them, and rows that see nothing at all."""
    whole, scores = seen(
        -math.inf if visible[0] is None else visible[0], math.inf if visible[1] is None else visible[1]
    )
    masked = visible != (None, None)
    own = whole if masked else None
    run = Run(**given(70, 150, largest=3.0), whole=own, inner=own, parts=parts, sink=sink, split=split)
    truth = reference(run, scores)
    np.testing.assert_allclose(run.result(), truth, rtol=2e-5, atol=4e-6)
    there = np.isfinite(run.wanted)
    np.testing.assert_allclose(run.logarithms[there], run.wanted[there], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("largest", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("parts", [1, 2])
def test_weights_of_any_size_become_pairs_that_err_less_than_fp32_itself(largest: float, parts: int) -> None:
    """ReLU attention: rows whose scores grow from tile to tile, and rows without any."""

    def whole(score: Any) -> Any:
        return np.maximum(score, np.float32(0.0))

    factors = given(64, 300, largest=largest)
    factors["key"] *= np.exp(np.linspace(-6, 6, 300))[None, :, None].astype(np.float32)
    factors["query"][:, 5] = 0.0
    run = Run(**factors, whole=whole, inner=whole, scale=1.0, softmax=False, split=True, parts=parts)
    truth = reference(run, lambda s: np.maximum(s, 0))
    own = np.maximum(np.einsum("bmd,bnd->bmn", run.query, run.key), 0) @ run.value
    errors = [np.linalg.norm(x - truth) / np.linalg.norm(truth) for x in (run.result(), own)]
    assert errors[0] < max(1.5 * errors[1], 4e-7)
    assert not run.result()[:, 5].any()


def test_a_map_reads_what_it_was_given() -> None:
    def whole(score: Any, slopes: Any) -> Any:
        return score * slopes

    with pytest.raises(ValueError, match="slopes"):
        ScoreMap(shape_of((4, 16), 16), 32, (whole, None), (), 0.0)


# ---- settings


def every(shape: AttentionShape, precision: str = "plain") -> Iterator[AttentionPoint]:
    for groups, tile_n, stages in itertools.product(KNOBS["groups"], KNOBS["tile_n"], KNOBS["stages"]):
        try:
            yield make_point(shape, {"groups": groups, "tile_n": tile_n, "stages": stages, "precision": precision})
        except ValueError:
            continue


def test_settings_fit_what_a_cta_has() -> None:
    for width in (16, 40, 64, 96, 128, 192, 256):
        found = list(every(shape_of((128, width), 128, width)))
        assert found, width
        for p in found:
            assert p.staged_bytes <= 226 * 1024 and p.held + 40 <= p.registers[1]
            most = 65536 // p.threads // 8 * 8
            assert p.registers[0] + p.groups * p.registers[1] <= (p.groups + 1) * min(most, 255)


def test_tiles_are_wide_enough_and_swizzle() -> None:
    assert [padded(w) for w in (16, 24, 40, 72, 100, 136, 200)] == [16, 32, 64, 96, 128, 192, 256]


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="tile_n"):
        make_point(shape_of((64, 64), 64), DEFAULTS | {"tile_n": 100})
    with pytest.raises(ValueError, match="registers"):
        make_point(shape_of((64, 256), 64, 256), DEFAULTS | {"tile_n": 256})
