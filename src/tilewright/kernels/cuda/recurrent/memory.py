"""What a CTA reads and writes of global memory: flat tensors, and where in them its part lies."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64, cute

from ...recurrent.shape import RecurrentShape
from ..common import math as m
from ..common.control import when
from .plan import RecurrentPlan


class LayerMemory:
    """Of the CTA that runs: its direction, its rows of the batch and its units. `tensors`: (products .., weights ..,
    biases .., states .., what is written), of which `written` says whether the sequence and each final state are."""

    def __init__(
        self, shape: RecurrentShape, plan: RecurrentPlan, tensors: list[Any], *, written: tuple[bool, ...],
        batch_first: bool,
    ) -> None:  # fmt: skip
        self.shape, self.plan, self.batch_first = shape, plan, batch_first
        rank, group, self.direction = cute.arch.block_idx()
        self.first, self.first_unit = group * plan.batch, rank * plan.units
        given = iter(tensors)
        self.products, self.weights = self._of_direction(given), self._of_direction(given)
        self.biases = self._of_direction(given) if shape.bias else None
        self.initial = [next(given) for _ in range(shape.states)]
        self.sequence: Any = next(given) if written[0] else None
        self.final = [next(given) if wanted else None for wanted in written[1:]]

    def _of_direction(self, given: Any) -> Any:
        """The tensor of this CTA's direction."""
        both = [next(given) for _ in range(self.shape.directions)]
        if len(both) == 1:
            return both[0]
        address = m.select(self.direction == 0, both[0].iterator.toint(), both[1].iterator.toint())
        start = cute.make_ptr(both[0].element_type, address, cute.AddressSpace.gmem, assumed_align=16)
        return cute.make_tensor(start, both[0].layout)

    def holds(self, b: Any, u: Any) -> Any:
        """Whether the tensors have this row of the cluster's batch and this unit of the CTA."""
        return m.both(self.first + b < self.shape.batch, self.first_unit + u < self.shape.hidden)

    def _state_at(self, b: Any, unit: Any) -> Any:
        """Of initial and final states."""
        return (self.direction * self.shape.batch + self.first + b) * self.shape.hidden + unit

    def _time(self, step: Any) -> Any:
        """Where in the sequence a step is: one of the second direction from the end."""
        s = self.shape
        return step if s.directions == 1 else m.select(self.direction == 0, step, Int32(s.steps - 1) - step)

    def first_h(self, b: Any, k: Any) -> Any:
        """h of a unit of any CTA before the first step; 0 where there is none."""
        value = cute.make_rmem_tensor((1,), Float32)
        value[0] = Float32(0.0)

        def read() -> None:
            value[0] = m.cast(self.initial[0][self._state_at(b, k)], self.shape.dtype)

        when(m.both(self.first + b < self.shape.batch, k < self.shape.hidden), read)
        return value[0]

    def weight(self, row: Any, k: Any, to: Any, place: int) -> None:
        """One of W_hh, of a row of the CTA, into a fragment; what there is not stays as it is."""
        s = self.shape
        gate, unit = row // self.plan.units, self.first_unit + row % self.plan.units

        def read() -> None:
            to[place] = m.cast(self.weights[(gate * s.hidden + unit) * s.hidden + k], s.dtype)

        when(m.both(unit < s.hidden, k < s.hidden), read)

    def own(self, b: Any, u: Any) -> tuple[list[Any], list[Any]]:
        """The states before the first step, and the biases of all gates."""
        s, unit = self.shape, self.first_unit + u
        states = [m.cast(initial[self._state_at(b, unit)], s.dtype) for initial in self.initial]
        if self.biases is None:
            return states, []
        return states, [m.cast(self.biases[gate * s.hidden + unit], s.dtype) for gate in range(self.plan.gates)]

    def gates(self, step: Any, b: Any, u: Any) -> list[Any]:
        """What the step's input gives all gates."""
        s, time, row = self.shape, self._time(step), self.first + b
        place = row * s.steps + time if self.batch_first else time * s.batch + row
        start = Int64(place) * (self.plan.gates * s.hidden) + (self.first_unit + u)
        return [m.cast(self.products[start + gate * s.hidden], s.dtype) for gate in range(self.plan.gates)]

    def write(self, step: Any, b: Any, u: Any, h: Any) -> None:
        """h of a step, into the sequence."""
        s = self.shape
        place = (self._time(step) * s.batch + self.first + b) * s.directions + self.direction
        self.sequence[Int64(place) * s.hidden + (self.first_unit + u)] = m.stored(h, s.dtype)

    def write_final(self, b: Any, u: Any, states: list[Any]) -> None:
        at = self._state_at(b, self.first_unit + u)
        for state, to in zip(states, self.final, strict=True):
            if to is not None:
                to[at] = m.stored(state, self.shape.dtype)
