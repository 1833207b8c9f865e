"""How a cluster shares a layer out, as numbers: no CUDA, and the same for a kernel that is traced and a test that
emulates it.

    cluster     `batch` rows of the batch, in one direction, all steps; clusters know nothing of one another
    CTA         `units` hidden units: `rows` = gates * units rows of W_hh, which stay in its registers, and what does
                not fit there in its shared memory
    thread      (row group, slice): `each` rows of W_hh, every `slices`-th four of K
    step        h (batch, K) from shared memory times the thread's weights; sums of all slices meet in shared memory;
                a thread for each (row of the batch, unit) makes gates and states, four neighbours send their h to
                all CTAs of the cluster, sixteen bytes at a time

Units and K are padded with weights, states and products of zero, which give states of zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from ...recurrent.shape import GATES, RecurrentShape

FOUR = 4  # neighbours that are read and sent together
KNOBS: dict[str, tuple[Any, ...]] = {
    "cluster": (1, 2, 4, 8, 16), "batch": (1, 2, 3, 4, 5, 6, 8, 10, 12, 16), "each": (1, 2, 3, 4, 6, 8),
    "slices": (2, 4, 8, 16, 32),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {"cluster": 8, "batch": 4, "each": 2, "slices": 8}
SHARED_BYTES = 226 * 1024
_REGISTERS = 1 << 16  # of a multiprocessor
_OWN_REGISTERS = 56  # of a thread, beside weights, sums and what it keeps of its elements
_LONGEST = 2048  # products that are written out for a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class CtaShare:
    """What a CTA has of a layer of `hidden` units of a `cell`, and what that takes: a setting of the knobs. `held` of
    the `fours` of K that a thread has are in registers, the others in shared memory."""

    cell: str
    hidden: int
    cluster: int
    batch: int
    each: int
    slices: int
    units: int
    fours: int
    held: int

    @property
    def gates(self) -> int:
        return GATES[self.cell]

    @property
    def rows(self) -> int:
        """Of W_hh, of a CTA."""
        return self.gates * self.units

    @property
    def groups(self) -> int:
        """Threads that share a slice of K."""
        return self.rows // self.each

    @property
    def threads(self) -> int:
        return self.groups * self.slices

    @property
    def depth(self) -> int:
        """K, padded: elements of h in shared memory for a row of the batch."""
        return FOUR * self.slices * self.fours

    @property
    def chains(self) -> int:
        """Sums of a thread for each of its results: several where these are too few to hide the latency of a sum."""
        return FOUR if self.each * self.batch < FOUR else 1

    @property
    def elements(self) -> int:
        """(Row of the batch, unit) of a CTA."""
        return self.batch * self.units

    @property
    def turns(self) -> int:
        """Elements of a thread."""
        return ceil(self.elements / self.threads)

    @property
    def message_bytes(self) -> int:
        """What a CTA is sent of a step, by all of the cluster."""
        return 4 * self.batch * self.units * self.cluster

    @property
    def kept_weights(self) -> int:
        """Of a CTA, in shared memory."""
        return FOUR * self.each * (self.fours - self.held) * self.threads

    @property
    def shared_bytes(self) -> int:
        state, sums = 2 * self.batch * self.depth, self.slices * self.batch * self.rows
        return 4 * (state + sums + self.kept_weights) + 64

    @property
    def registers(self) -> int:
        """Of a thread, at most."""
        return min(255, _REGISTERS // self.threads // 8 * 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentPlan(CtaShare):
    """A CtaShare, and where things lie in it; arguments may be values that are known when the kernel runs."""

    def row(self, group: Any, i: int) -> Any:
        """Of W_hh, of the CTA: gate * units + unit."""
        return group + i * self.groups

    def four(self, part: Any, j: int) -> Any:
        """Which four of K the thread of a slice has j-th."""
        return part + j * self.slices

    def weight(self, thread: Any, i: int, j: int) -> Any:
        """Where in shared memory four weights of row i begin, j-th of those that are kept there."""
        return ((j * self.each + i) * self.threads + thread) * FOUR

    def state(self, buffer: Any, b: Any, k: Any) -> Any:
        """Where h is, of the buffer of even or odd steps."""
        return (buffer * self.batch + b) * self.depth + k

    def total(self, part: Any, b: Any, row: Any) -> Any:
        """Where a slice's sum is."""
        return (part * self.batch + b) * self.rows + row

    def element(self, number: Any) -> tuple[Any, Any]:
        """Row of the batch, and unit."""
        return number // self.units, number % self.units


def make_plan(shape: RecurrentShape, knobs: dict[str, Any]) -> RecurrentPlan:
    """The plan of these knobs. Raises ValueError on an unknown knob or value, and on what does not fit."""
    for name, value in knobs.items():
        if value not in KNOBS.get(name, ()):
            raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, KNOBS.get(name, ())))}")
    cluster, batch, each, slices = (knobs[name] for name in KNOBS)
    units = ceil(ceil(shape.hidden / cluster) / FOUR) * FOUR
    fours = ceil(units * cluster / (FOUR * slices))
    plan = RecurrentPlan(cell=shape.cell, hidden=shape.hidden, cluster=cluster, batch=batch, each=each, slices=slices,
                         units=units, fours=fours, held=fours)  # fmt: skip
    if plan.rows % each or plan.threads % 32 or not 64 <= plan.threads <= 1024:
        raise ValueError(f"{plan.rows} rows of weights, {each} a thread, in {slices} slices: no whole warps")
    if batch >= 2 * shape.batch or each * batch > 64 or FOUR * each * fours * batch > _LONGEST:
        raise ValueError(f"{batch} rows of the batch, {each} of weights: more than a thread can have")
    own = _OWN_REGISTERS + each * batch * plan.chains + FOUR * (batch + each) + plan.turns * (2 * plan.gates + 2)
    held = min(fours, max(0, plan.registers - own) // (FOUR * each))
    plan = RecurrentPlan(cell=shape.cell, hidden=shape.hidden, cluster=cluster, batch=batch, each=each, slices=slices,
                         units=units, fours=fours, held=held)  # fmt: skip
    if own > plan.registers or plan.shared_bytes > SHARED_BYTES:
        raise ValueError(f"{plan.shared_bytes} bytes of shared memory, {own} registers and weights: more than there is")
    return plan
