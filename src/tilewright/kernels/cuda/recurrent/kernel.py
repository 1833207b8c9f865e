"""The steps of a recurrent layer as one launch (sm_90a). Who has what: `plan`. Who waits for whom: `protocol`.

    grid     (cluster, groups of `batch` rows of the batch, directions), clusters along the first
    reads    W_hh and the first states once; of each step the products of its input, a step ahead
    writes   h of each step, where the sequence is wanted; the final states, where these are

Products are fp32 FMAs whatever the dtype; states are in fp32 between steps, and what is written is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any

from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from ...recurrent.shape import RecurrentShape
from ..common import math as m
from ..common.control import loop, when
from .memory import LayerMemory
from .plan import FOUR, RecurrentPlan
from .product import KeptWeights
from .protocol import BARRIERS, StepProtocol

Value = Any


class RecurrentKernel:
    """A layer of a RecurrentShape under a plan, ready to be traced. `written`: whether the sequence and each final
    state are; `batch_first`: how the products of the input lie (see `layers.LayerCall`)."""

    def __init__(
        self, shape: RecurrentShape, plan: RecurrentPlan, *, written: tuple[bool, ...], batch_first: bool
    ) -> None:
        self.shape, self.plan, self.written, self.batch_first = shape, plan, written, batch_first
        self.protocol = StepProtocol(shape.steps)

    def __call__(self, tensors: tuple[Any, ...], stream: Any) -> None:
        """Emit the launch of (products .., weights .., biases .., states .., what is written), flat tensors."""
        s, p = self.shape, self.plan
        grid = [p.cluster, ceil(s.batch / p.batch), s.directions]
        self._kernel(list(tensors)).launch(
            grid=grid, block=[p.threads, 1, 1], cluster=[p.cluster, 1, 1], min_blocks_per_mp=1, stream=stream
        )

    @cute.kernel
    def _kernel(self, tensors: list) -> None:
        p = self.plan
        shared = SmemAllocator()
        barriers = shared.allocate_array(Int64, BARRIERS)
        sizes = (2 * p.batch * p.depth, p.slices * p.batch * p.rows, max(p.kept_weights, FOUR))
        held = [shared.allocate_tensor(Float32, cute.make_layout((n,)), byte_alignment=16) for n in sizes]
        own = _Steps(self, tensors, barriers, held)
        own.open()
        self.protocol.run(own, loop, when)
        own.close()


class _Steps:
    """See `protocol.StepRole`: of one thread."""

    def __init__(self, kernel: RecurrentKernel, tensors: list[Any], barriers: Any, held: list[Any]) -> None:
        s, p = kernel.shape, kernel.plan
        self.plan, self.steps, self.barriers = p, s.steps, barriers
        self.h, self.totals, kept = held
        self.thread = cute.arch.thread_idx()[0]
        self.memory = LayerMemory(s, p, tensors, written=kernel.written, batch_first=kernel.batch_first)
        self.weights = KeptWeights(p, kept)
        self.states = [cute.make_rmem_tensor((p.turns,), Float32) for _ in range(s.states)]
        self.read = [cute.make_rmem_tensor((p.turns * p.gates,), Float32) for _ in range(2)]  # of this step, the next
        self.bias = cute.make_rmem_tensor((p.turns * p.gates,), Float32)
        for fragment in (*self.states, *self.read, self.bias):
            fragment.fill(0.0)

    def _elements(self) -> list[tuple[int, Any, Any, Any, Any]]:
        """Of this thread: turn, row of the batch in the cluster, unit in the CTA, whether the CTA has such, and
        whether the tensors do."""
        p, found = self.plan, []
        for n in range(p.turns):
            number = self.thread + n * p.threads
            b, u = p.element(number)
            inside = number < p.elements
            found.append((n, b, u, inside, m.both(inside, self.memory.holds(b, u))))
        return found

    def open(self) -> None:
        """Before the first step: barriers, h of all units in shared memory, weights, states and biases."""
        p = self.plan

        def prepare() -> None:
            for number in range(BARRIERS):
                cute.arch.mbarrier_init(self.barriers + number, 1)
                cute.arch.mbarrier_arrive_and_expect_tx(self.barriers + number, p.message_bytes)

        def state(i: Any) -> None:
            number = i * p.threads + self.thread
            b, k = number // p.depth, number % p.depth

            def write() -> None:
                self.h[p.state(0, b, k)] = self.memory.first_h(b, k)
                self.h[p.state(1, b, k)] = Float32(0.0)

            when(number < p.batch * p.depth, write)

        def own(n: int, b: Any, u: Any) -> None:
            states, biases = self.memory.own(b, u)
            for held, value in zip(self.states, states, strict=True):
                held[n] = value
            for gate, value in enumerate(biases):
                self.bias[n * p.gates + gate] = value

        when(self.thread == 0, prepare)
        cute.arch.mbarrier_init_fence()
        loop(0, ceil(p.batch * p.depth / p.threads), state)
        self.weights.take(self.memory)
        for n, b, u, _, there in self._elements():
            when(there, partial(own, n, b, u))
        self._read(Int32(0), self.read[0])
        cute.arch.sync_threads()
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

    def fetch(self, step: Any) -> None:
        last = self.steps - 1
        self._read(m.select(step < last, step + 1, Int32(last)), self.read[1])

    def _read(self, step: Any, to: Any) -> None:
        """What the step's input gives the gates."""

        def read(n: int, b: Any, u: Any) -> None:
            for gate, value in enumerate(self.memory.gates(step, b, u)):
                to[n * self.plan.gates + gate] = value

        for n, b, u, _, there in self._elements():
            when(there, partial(read, n, b, u))

    def wait(self, barrier: Any, parity: Any) -> None:
        cute.arch.mbarrier_wait(self.barriers + barrier, parity)

    def expect(self, barrier: Any) -> None:
        size, pointer = self.plan.message_bytes, self.barriers + barrier
        when(self.thread == 0, lambda: cute.arch.mbarrier_arrive_and_expect_tx(pointer, size))

    def multiply(self, buffer: Any) -> None:
        self.weights.multiply(self.h, buffer, self.totals)

    def meet(self) -> None:
        cute.arch.sync_threads()

    def finish(self, step: Any) -> None:
        p = self.plan

        def element(n: int, b: Any, u: Any) -> None:
            """Gates and states; what is not there has weights and products of zero, and stays zero."""
            sums = []
            for gate in range(p.gates):
                total = self.bias[n * p.gates + gate]
                for part in range(p.slices):
                    total = total + self.totals[p.total(part, b, gate * p.units + u)]
                sums.append(total)
            x = [self.read[0][n * p.gates + gate] for gate in range(p.gates)]
            made = after(p.cell, x, sums, [state[n] for state in self.states])
            for state, value in zip(self.states, made, strict=True):
                state[n] = value

        for n, b, u, inside, there in self._elements():
            when(inside, partial(element, n, b, u))
            if self.memory.sequence is not None:
                when(there, partial(lambda n, b, u: self.memory.write(step, b, u, self.states[0][n]), n, b, u))
        for i in range(cute.size(self.read[0])):
            self.read[0][i] = self.read[1][i]

    def send(self, buffer: Any, barrier: Any) -> None:
        p = self.plan
        lane = cute.arch.lane_idx()
        for n, b, u, inside, _ in self._elements():
            bits = self.states[0][n].bitcast(Int32)
            words = tuple(cute.arch.shuffle_sync(bits, lane // FOUR * FOUR + c) for c in range(FOUR))
            place = (self.h.iterator + p.state(buffer, b, self.memory.first_unit + u // FOUR * FOUR)).align(16)
            for first in range(0, p.cluster, FOUR):
                receiver = first + lane % FOUR
                to = partial(cute.arch.store_async_dsmem, place, words, self.barriers + barrier, receiver)
                when(m.both(inside, receiver < p.cluster), to)

    def close(self) -> None:
        """After the last step: the final states."""
        if all(to is None for to in self.memory.final):
            return
        for n, b, u, _, there in self._elements():
            states = [state[n] for state in self.states]
            when(there, partial(self.memory.write_final, b, u, states))


def after(cell: str, x: Sequence[Value], sums: Sequence[Value], before: Sequence[Value]) -> tuple[Value, ...]:
    """The states after a step: h, and of an LSTM c. Of each gate: what the input gives, and what h before gives, with
    its bias."""
    if cell == "gru":
        r, z = (m.sigmoid(x[g] + sums[g], "f32") for g in range(2))
        n = m.tanh(x[2] + r * sums[2], "f32")
        return (n + z * (before[0] - n),)
    both = [a + b for a, b in zip(x, sums, strict=True)]
    if cell == "lstm":
        i, f, o = (m.sigmoid(both[g], "f32") for g in (0, 1, 3))
        c = f * before[1] + i * m.tanh(both[2], "f32")
        return o * m.tanh(c, "f32"), c
    return (m.tanh(both[0], "f32") if cell == "tanh" else m.larger(both[0], Float32(0.0)),)
