"""The skeleton of recurrent layers without a GPU: its barriers, its places in memory and its arithmetic, as clusters of
CTAs that run side by side; and what it compiles to."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.recurrent import kernel as kernel_module
from tilewright.kernels.cuda.recurrent.fused import FusedRecurrent
from tilewright.kernels.cuda.recurrent.kernel import after
from tilewright.kernels.cuda.recurrent.plan import DEFAULTS, FOUR, KNOBS, SHARED_BYTES, RecurrentPlan, make_plan
from tilewright.kernels.cuda.recurrent.protocol import BARRIERS, StepProtocol
from tilewright.kernels.recurrent.shape import RecurrentShape
from tilewright.realise.recurrent.points import space

Array = np.ndarray[Any, Any]
WAIT_S = 20.0  # after which a wait is taken for one that never ends


def shape_of(cell: str = "lstm", **given: Any) -> RecurrentShape:
    numbers: dict[str, Any] = {"steps": 7, "batch": 5, "hidden": 20, "layers": 1, "directions": 1, "bias": True,
                               "dtype": "f32", "wanted": (True,) * (3 if cell == "lstm" else 2)}  # fmt: skip
    return RecurrentShape(cell=cell, **(numbers | given))


# ---- a cluster of CTAs, each a thread of this process


class Barrier:
    """An mbarrier: a phase ends when one has arrived and all bytes that it told of have come."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.phase, self.arrived, self.bytes = 0, 0, 0

    def expect(self, size: int) -> None:
        with self.condition:
            self.arrived, self.bytes = self.arrived + 1, self.bytes + size
            assert self.arrived == 1, "two arrivals in a phase"
            self._settle()

    def complete(self, size: int) -> None:
        with self.condition:
            self.bytes -= size
            self._settle()

    def _settle(self) -> None:
        if self.arrived == 1 and self.bytes == 0:
            self.phase, self.arrived = self.phase + 1, 0
            self.condition.notify_all()

    def wait(self, parity: int) -> None:
        with self.condition:
            assert self.condition.wait_for(lambda: self.phase % 2 != parity, WAIT_S), "waits for ever"


class Cta:
    """The part of a CTA in the protocol, with the plan's places; what the kernel does by threads, by arrays of them.
    `slow` is called between any two actions."""

    def __init__(self, cluster: Cluster, rank: int) -> None:
        p = cluster.plan
        self.cluster, self.plan, self.rank = cluster, p, rank
        self.barriers = [Barrier() for _ in range(BARRIERS)]
        self.h = np.zeros(2 * p.batch * p.depth)
        self.totals = np.full(p.slices * p.batch * p.rows, np.nan)
        b, k = np.meshgrid(np.arange(p.batch), np.arange(p.depth), indexing="ij")
        self.h[p.state(0, b, k)] = cluster.padded_states[0][:, : p.depth]
        number = np.arange(p.elements)
        self.b, self.u = p.element(number)
        self.states = [s[self.b, rank * p.units + self.u] for s in cluster.padded_states]
        thread = np.arange(p.threads)
        self.group, self.part = thread % p.groups, thread // p.groups
        self.weights = np.stack([self._row(i) for i in range(p.each)])  # (each, fours, threads, 4)
        self.ended = False
        for barrier in self.barriers:
            barrier.expect(p.message_bytes)

    def _row(self, i: int) -> Array:
        """What a thread takes of W_hh, of its row i."""
        p, row = self.plan, self.plan.row(self.group, i)
        gate, unit = row // p.units, self.rank * p.units + row % p.units
        fours = [p.four(self.part, j)[:, None] * FOUR + np.arange(FOUR) for j in range(p.fours)]
        return np.stack([self.cluster.padded_weights[gate[:, None], unit[:, None], k] for k in fours])

    def fetch(self, step: int) -> None:
        self.cluster.slow()

    def wait(self, barrier: int, parity: int) -> None:
        self.barriers[barrier].wait(parity)
        self.cluster.slow()

    def expect(self, barrier: int) -> None:
        self.barriers[barrier].expect(self.plan.message_bytes)

    def multiply(self, buffer: int) -> None:
        p = self.plan
        sums = np.zeros((p.each, p.batch, p.threads))
        for j, b, c in itertools.product(range(p.fours), range(p.batch), range(FOUR)):
            at = p.state(buffer, 0, self.part * FOUR) + p.state(0, b, FOUR * p.slices * j) + c
            assert (at // p.depth == buffer * p.batch + b).all()
            sums[:, b] += self.weights[:, j, :, c] * self.h[at]
            if c == 0:
                self.cluster.slow()
        self.totals[:] = np.nan
        for i, b in itertools.product(range(p.each), range(p.batch)):
            self.totals[p.total(self.part, b, p.row(self.group, i))] = sums[i, b]

    def meet(self) -> None:
        assert not np.isnan(self.totals).any(), "a sum that no thread has written"

    def finish(self, step: int) -> None:
        p, cluster = self.plan, self.cluster
        rows = [p.total(np.arange(p.slices)[:, None], self.b, g * p.units + self.u) for g in range(p.gates)]
        sums = [self.totals[row].sum(0) for row in rows]
        unit = self.rank * p.units + self.u
        x = [cluster.products[step, self.b, g, unit] for g in range(p.gates)]
        sums = [total + cluster.biases[g, unit] for g, total in enumerate(sums)]
        self.states = list(after(p.cell, x, sums, self.states))
        cluster.sequence[step, self.b, unit] = self.states[0]

    def send(self, buffer: int, barrier: int) -> None:
        p = self.plan
        at = p.state(buffer, self.b, self.rank * p.units + self.u // FOUR * FOUR)
        receivers = list(range(p.cluster))
        random.shuffle(receivers)
        for receiver in receivers:
            other = self.cluster.ctas[receiver]
            assert not other.ended, "sent to a CTA that is gone"
            for first in range(0, p.elements, FOUR):
                assert at[first] % FOUR == 0 and len(set(at[first : first + FOUR])) == 1
                other.h[at[first] : at[first] + FOUR] = self.states[0][first : first + FOUR]
                other.barriers[barrier].complete(4 * FOUR)
            self.cluster.slow()


@dataclass
class Cluster:
    """All CTAs of a cluster, over their rows of the batch, in float64."""

    plan: RecurrentPlan
    products: Array  # (steps, batch, gates, units of all CTAs)
    padded_weights: Array  # (gates, units of all CTAs, K)
    biases: Array
    padded_states: list[Array]  # (batch, the larger of units and K)
    seed: int = 0
    ctas: list[Cta] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.sequence = np.zeros((len(self.products), self.plan.batch, self.plan.units * self.plan.cluster))
        self.ctas = [Cta(self, rank) for rank in range(self.plan.cluster)]

    def slow(self) -> None:
        if self.random.random() < 0.05:
            threading.Event().wait(0.0002)

    def run(self, protocol: StepProtocol) -> None:
        threads = [threading.Thread(target=self._one, args=(cta, protocol)) for cta in self.ctas]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.faults:
            raise self.faults[0]

    def _one(self, cta: Cta, protocol: StepProtocol) -> None:
        try:
            protocol.run(cta, plainly, lambda condition, body: body() if condition else None)
            cta.ended = True
        except BaseException as fault:
            self.faults.append(fault)


def plainly(first: int, last: int, body: Callable[[int], None]) -> None:
    for i in range(first, last):
        body(i)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's gates on arrays."""
    monkeypatch.setattr(kernel_module, "m", SimpleNamespace(
        sigmoid=lambda x, dtype: 1 / (1 + np.exp(-x)), tanh=lambda x, dtype: np.tanh(x),
        larger=lambda x, y: np.maximum(x, y),
    ))  # fmt: skip
    monkeypatch.setattr(kernel_module, "Float32", float)


def emulated(shape: RecurrentShape, plan: RecurrentPlan, seed: int, steps: int | None = None) -> tuple[Array, Array]:
    """The sequence of a cluster's rows of the batch, and the same in plain steps. The protocol is of `steps`."""
    r = np.random.default_rng(seed)
    units, depth = plan.units * plan.cluster, max(plan.units * plan.cluster, plan.depth)
    x = np.zeros((shape.steps, plan.batch, plan.gates, units))
    w, bias = np.zeros((plan.gates, units, depth)), np.zeros((plan.gates, units))
    states = [np.zeros((plan.batch, depth)) for _ in range(shape.states)]
    there, h = min(plan.batch, shape.batch), shape.hidden
    x[:, :there, :, :h] = r.normal(size=(shape.steps, there, plan.gates, h))
    w[:, :h, :h], bias[:, :h] = r.normal(size=(plan.gates, h, h)) / h**0.5, r.normal(size=(plan.gates, h))
    for state in states:
        state[:there, :h] = r.normal(size=(there, h))
    made = Cluster(plan, x, w, bias, states, seed)
    made.run(StepProtocol(steps or shape.steps))
    truth, now = [], [s[:, :h] for s in states]
    for step in x[:, :, :, :h]:
        sums = [now[0] @ w[g, :h, :h].T + bias[g, :h] for g in range(plan.gates)]
        now = list(after(plan.cell, [step[:, g] for g in range(plan.gates)], sums, now))
        truth.append(now[0])
    assert not made.sequence[:, :, h:].any()  # what is padded stays zero
    return made.sequence[:, :there, :h], np.stack(truth)[:, :there]


PLANS: list[tuple[RecurrentShape, dict[str, Any]]] = [
    (shape_of(), {"cluster": 2, "batch": 2, "each": 2, "slices": 4}),
    (shape_of("gru", hidden=37), {"cluster": 4, "batch": 3, "each": 3, "slices": 8}),
    (shape_of("tanh", steps=1), {"cluster": 1, "batch": 4, "each": 1, "slices": 8}),
    (shape_of("relu", steps=2, hidden=33, batch=1), {"cluster": 2, "batch": 1, "each": 1, "slices": 8}),
    (shape_of("lstm", hidden=60, steps=9), {"cluster": 8, "batch": 5, "each": 4, "slices": 16}),
    (shape_of("gru", hidden=130, steps=4), {"cluster": 16, "batch": 4, "each": 3, "slices": 16}),
]


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize(("shape", "knobs"), PLANS)
def test_clusters_of_ctas_give_what_plain_steps_give_and_nobody_waits_for_ever(
    shape: RecurrentShape, knobs: dict[str, Any]
) -> None:  # fmt: skip
    for seed in range(3):
        made, truth = emulated(shape, make_plan(shape, knobs), seed)
        np.testing.assert_allclose(made, truth, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("lanes")
def test_a_wait_that_is_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, knobs = PLANS[4]
    monkeypatch.setattr(Barrier, "wait", lambda self, parity: None)
    with pytest.raises(AssertionError):
        for seed in range(5):
            made, truth = emulated(shape, make_plan(shape, knobs), seed)
            np.testing.assert_allclose(made, truth)


def test_weights_in_shared_memory_lie_apart_and_inside() -> None:
    shape = shape_of("lstm", hidden=256, batch=32)
    plan = make_plan(shape, DEFAULTS | {"cluster": 4, "batch": 1, "each": 4, "slices": 4})
    assert 0 < plan.held < plan.fours and plan.shared_bytes <= SHARED_BYTES
    thread = np.arange(plan.threads)
    places = [plan.weight(thread, i, j) for i in range(plan.each) for j in range(plan.fours - plan.held)]
    every = np.concatenate([p[:, None] + np.arange(FOUR) for p in places]).ravel()
    assert sorted(every) == list(range(plan.kept_weights))


def test_knobs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="must be one of"):
        make_plan(shape_of(), DEFAULTS | {"cluster": 3})
    with pytest.raises(ValueError, match="whole warps"):
        make_plan(shape_of(), DEFAULTS | {"each": 8, "slices": 2, "cluster": 16})
    with pytest.raises(ValueError, match="shared memory"):
        make_plan(shape_of(hidden=1024), {"cluster": 16, "batch": 1, "each": 8, "slices": 4})
    assert not space(shape_of(hidden=2048), 132).points


# ---- what it compiles to

COMPILED = [
    (shape_of("lstm", steps=512, batch=10, hidden=256, directions=2), (True, False, False), False),
    (shape_of("gru", steps=512, batch=10, hidden=256), (True, True), True),
    (shape_of("tanh", steps=9, batch=3, hidden=50, bias=False, dtype="bf16"), (False, True), False),
    (shape_of("relu", steps=9, batch=3, hidden=512, dtype="f16"), (True, True), False),
    (shape_of("lstm", steps=30, batch=32, hidden=512), (True, True, True), False),
]


@pytest.mark.parametrize(("shape", "written", "batch_first"), COMPILED)
@pytest.mark.each(2)
def test_points_compile_for_sm_90a_and_spill_no_weights(
    shape: RecurrentShape, written: tuple[bool, ...], batch_first: bool, tmp_path: Any
) -> None:  # fmt: skip
    for number, point in enumerate(space(shape, 132).points[:2]):
        fused = FusedRecurrent(shape, dict(point))
        folder = tmp_path / str(number)
        folder.mkdir()
        launch: Any = fused.compile(written, batch_first=batch_first, options=f"--keep-cubin --dump-dir={folder}")
        (kernel,) = taken(launch.artifacts.CUBIN)
        # Where registers are full of weights, ptxas puts a few addresses aside, which no product waits for.
        assert kernel.local_bytes <= (0 if fused.plan.held == fused.plan.fours else 64)
        assert kernel.registers <= fused.plan.registers


def test_every_knob_has_a_point() -> None:
    """Of the shapes of KernelBench's level 3, and of those beside it."""
    found: dict[str, set[Any]] = {name: set() for name in KNOBS}
    for cell, batch, hidden in itertools.product(("lstm", "gru", "tanh"), (1, 8, 10, 32, 256), (17, 64, 256, 512)):
        for point in space(shape_of(cell, steps=64, batch=batch, hidden=hidden), 132).points:
            for name, value in point:
                found[name].add(value)
    assert found["cluster"] == set(KNOBS["cluster"])
