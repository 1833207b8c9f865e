"""The steps of a recurrent layer as one launch (sm_90a): see `plan` for who has what, `protocol` for who waits for whom.

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

import cutlass.cute.math as libdevice
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from ...recurrent.shape import RecurrentShape
from ..common import math as m
from ..common.control import loop, when
from ..common.views import ITEM_BYTES
from .plan import FOUR, RecurrentPlan
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
        self.kernel, self.barriers = kernel, barriers
        self.h, self.totals, self.kept = held
        s, p = kernel.shape, kernel.plan
        self.thread = cute.arch.thread_idx()[0]
        self.group, self.part = self.thread % p.groups, self.thread // p.groups
        self.rank, first, self.direction = cute.arch.block_idx()
        self.first = first * p.batch  # row of the batch
        given = iter(tensors)
        self.products, self.weights = self._of_direction(given), self._of_direction(given)
        self.biases = self._of_direction(given) if s.bias else None
        self.initial = [next(given) for _ in range(s.states)]
        self.sequence = next(given) if kernel.written[0] else None
        self.final = [next(given) if wanted else None for wanted in kernel.written[1:]]
        self.own = cute.make_rmem_tensor((max(FOUR * p.each * p.held, 1),), Float32)
        self.states = [cute.make_rmem_tensor((p.turns,), Float32) for _ in range(s.states)]
        self.read = [cute.make_rmem_tensor((p.turns * p.gates,), Float32) for _ in range(2)]  # of this step, the next
        self.bias = cute.make_rmem_tensor((p.turns * p.gates,), Float32)
        for fragment in (*self.states, *self.read, self.bias, self.own):
            fragment.fill(0.0)

    def _of_direction(self, given: Any) -> Any:
        """The tensor of this CTA's direction."""
        both = [next(given) for _ in range(self.kernel.shape.directions)]
        if len(both) == 1:
            return both[0]
        address = m.select(self.direction == 0, both[0].iterator.toint(), both[1].iterator.toint())
        start = cute.make_ptr(both[0].element_type, address, cute.AddressSpace.gmem, assumed_align=16)
        return cute.make_tensor(start, both[0].layout)

    def _elements(self) -> list[tuple[int, Any, Any, Any, Any]]:
        """Of this thread: turn, row of the batch in the cluster, unit in the CTA, whether the CTA has such, and
        whether the tensors do."""
        s, p = self.kernel.shape, self.kernel.plan
        found = []
        for n in range(p.turns):
            number = self.thread + n * p.threads
            b, u = p.element(number)
            inside = number < p.elements
            there = m.both(self.first + b < s.batch, self.rank * p.units + u < s.hidden)
            found.append((n, b, u, inside, m.both(inside, there)))
        return found

    # ---- before the first step

    def open(self) -> None:
        s, p = self.kernel.shape, self.kernel.plan

        def prepare() -> None:
            for number in range(BARRIERS):
                cute.arch.mbarrier_init(self.barriers + number, 1)
                cute.arch.mbarrier_arrive_and_expect_tx(self.barriers + number, p.message_bytes)

        when(self.thread == 0, prepare)
        cute.arch.mbarrier_init_fence()
        loop(0, ceil(p.batch * p.depth / p.threads), self._first_state)
        for i in range(p.each):
            for j in range(p.fours):
                self._take_weights(i, j)
        for n, b, u, _, there in self._elements():
            when(there, partial(self._take_element, n, b, u))
        self._read(Int32(0), self.read[0])
        cute.arch.sync_threads()
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

    def _first_state(self, i: Any) -> None:
        s, p = self.kernel.shape, self.kernel.plan
        number = i * p.threads + self.thread
        b, k = number // p.depth, number % p.depth
        value = cute.make_rmem_tensor((1,), Float32)
        value[0] = Float32(0.0)

        def read() -> None:
            value[0] = m.cast(self.initial[0][self._state_at(b, k)], s.dtype)

        def write() -> None:
            self.h[p.state(0, b, k)] = value[0]
            self.h[p.state(1, b, k)] = Float32(0.0)

        inside = number < p.batch * p.depth
        when(m.both(inside, m.both(self.first + b < s.batch, k < s.hidden)), read)
        when(inside, write)

    def _state_at(self, b: Any, unit: Any) -> Any:
        """Of initial and final states."""
        s = self.kernel.shape
        return (self.direction * s.batch + self.first + b) * s.hidden + unit

    def _take_weights(self, i: int, j: int) -> None:
        s, p = self.kernel.shape, self.kernel.plan
        row, four = p.row(self.group, i), p.four(self.part, j)
        gate, unit = row // p.units, self.rank * p.units + row % p.units
        taken = cute.make_rmem_tensor((FOUR,), Float32)
        taken.fill(0.0)

        def read(c: int) -> None:
            taken[c] = m.cast(self.weights[(gate * s.hidden + unit) * s.hidden + four * FOUR + c], s.dtype)

        for c in range(FOUR):
            when(m.both(unit < s.hidden, four * FOUR + c < s.hidden), partial(read, c))
        if j < p.held:
            for c in range(FOUR):
                self.own[(j * p.each + i) * FOUR + c] = taken[c]
        else:
            cute.autovec_copy(taken, self._four(self.kept, p.weight(self.thread, i, j - p.held)))

    def _take_element(self, n: int, b: Any, u: Any) -> None:
        s, p = self.kernel.shape, self.kernel.plan
        unit = self.rank * p.units + u
        for state, initial in zip(self.states, self.initial, strict=True):
            state[n] = m.cast(initial[self._state_at(b, unit)], s.dtype)
        for gate in range(p.gates if self.biases is not None else 0):
            self.bias[n * p.gates + gate] = m.cast(self.biases[gate * s.hidden + unit], s.dtype)

    # ---- a step

    def fetch(self, step: Any) -> None:
        last = self.kernel.shape.steps - 1
        self._read(m.select(step < last, step + 1, Int32(last)), self.read[1])

    def _read(self, step: Any, to: Any) -> None:
        """What the step's input gives the gates."""
        s, p = self.kernel.shape, self.kernel.plan
        time, width = self._time(step), p.gates * s.hidden

        def read(n: int, b: Any, u: Any) -> None:
            row = self.first + b
            place = row * s.steps + time if self.kernel.batch_first else time * s.batch + row
            start = Int64(place) * width + (self.rank * p.units + u)
            for gate in range(p.gates):
                to[n * p.gates + gate] = m.cast(self.products[start + gate * s.hidden], s.dtype)

        for n, b, u, _, there in self._elements():
            when(there, partial(read, n, b, u))

    def _time(self, step: Any) -> Any:
        """Where in the sequence a step is: one of the second direction from the end."""
        s = self.kernel.shape
        return step if s.directions == 1 else m.select(self.direction == 0, step, Int32(s.steps - 1) - step)

    def wait(self, barrier: Any, parity: Any) -> None:
        cute.arch.mbarrier_wait(self.barriers + barrier, parity)

    def expect(self, barrier: Any) -> None:
        size = self.kernel.plan.message_bytes
        when(self.thread == 0, lambda: cute.arch.mbarrier_arrive_and_expect_tx(self.barriers + barrier, size))

    def multiply(self, buffer: Any) -> None:
        p = self.kernel.plan
        sums = [[Float32(0.0)] * p.chains for _ in range(p.each * p.batch)]
        begin = p.state(buffer, 0, self.part * FOUR)
        for j in range(p.fours):
            weights = [self._weights(i, j) for i in range(p.each)]
            for b in range(p.batch):
                x = cute.make_rmem_tensor((FOUR,), Float32)
                cute.autovec_copy(self._four(self.h, begin + p.state(0, b, FOUR * p.slices * j)), x)
                for i in range(p.each):
                    for c in range(FOUR):
                        own = sums[i * p.batch + b]
                        own[c % p.chains] = libdevice.fma(weights[i][c], x[c], own[c % p.chains])
        for i in range(p.each):
            for b in range(p.batch):
                total, *others = sums[i * p.batch + b]
                for own in others:
                    total = total + own
                self.totals[p.total(self.part, b, p.row(self.group, i))] = total

    def _weights(self, i: int, j: int) -> list[Value]:
        p = self.kernel.plan
        if j < p.held:
            return [self.own[(j * p.each + i) * FOUR + c] for c in range(FOUR)]
        taken = cute.make_rmem_tensor((FOUR,), Float32)
        cute.autovec_copy(self._four(self.kept, p.weight(self.thread, i, j - p.held)), taken)
        return [taken[c] for c in range(FOUR)]

    @staticmethod
    def _four(shared: Any, at: Any) -> Any:
        return cute.make_tensor((shared.iterator + at).align(16), cute.make_layout((FOUR,)))

    def meet(self) -> None:
        cute.arch.sync_threads()

    def finish(self, step: Any) -> None:
        for n, b, u, inside, there in self._elements():
            when(inside, partial(self._element, n, b, u))
            if self.sequence is not None:
                when(there, partial(self._write, step, n, b, u))
        for i in range(cute.size(self.read[0])):
            self.read[0][i] = self.read[1][i]

    def _element(self, n: int, b: Any, u: Any) -> None:
        """Gates and states; what is not there has weights and products of zero, and stays zero."""
        p = self.kernel.plan
        sums = []
        for gate in range(p.gates):
            total = self.bias[n * p.gates + gate]
            for part in range(p.slices):
                total = total + self.totals[p.total(part, b, gate * p.units + u)]
            sums.append(total)
        x = [self.read[0][n * p.gates + gate] for gate in range(p.gates)]
        before = [state[n] for state in self.states]
        for state, value in zip(self.states, after(p.cell, x, sums, before), strict=True):
            state[n] = value

    def _write(self, step: Any, n: int, b: Any, u: Any) -> None:
        s, p = self.kernel.shape, self.kernel.plan
        place = (self._time(step) * s.batch + self.first + b) * s.directions + self.direction
        unit = self.rank * p.units + u
        self.sequence[Int64(place) * s.hidden + unit] = m.stored(self.states[0][n], s.dtype)

    def send(self, buffer: Any, barrier: Any) -> None:
        p = self.kernel.plan
        lane = cute.arch.lane_idx()
        for n, b, u, inside, _ in self._elements():
            bits = self.states[0][n].bitcast(Int32)
            words = tuple(cute.arch.shuffle_sync(bits, lane // FOUR * FOUR + c) for c in range(FOUR))
            at = p.state(buffer, b, self.rank * p.units + u // FOUR * FOUR)
            place = (self.h.iterator + at).align(16)
            for first in range(0, p.cluster, FOUR):
                receiver = first + lane % FOUR
                to = partial(cute.arch.store_async_dsmem, place, words, self.barriers + barrier, receiver)
                when(m.both(inside, receiver < p.cluster), to)

    # ---- after the last step

    def close(self) -> None:
        def write(n: int, b: Any, u: Any) -> None:
            at = self._state_at(b, self.rank * self.kernel.plan.units + u)
            for state, to in zip(self.states, self.final, strict=True):
                if to is not None:
                    to[at] = m.stored(state[n], self.kernel.shape.dtype)

        if any(to is not None for to in self.final):
            for n, b, u, _, there in self._elements():
                when(there, partial(write, n, b, u))


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
