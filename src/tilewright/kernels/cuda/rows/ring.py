"""Blocks of a team's rows in shared memory, one after the other around a ring; traced inside a kernel (see `team`)."""

from __future__ import annotations

from typing import Any

from cutlass import Int32, cute

from ..common import math as m
from ..common.addresses import Addresses
from .plan import Plan


class Ring:
    """`plan.ring_steps` vectors a thread of each operand that stays on chip, at [vector][thread].

    A thread copies and reads only its own vectors, so nothing has to be synchronised: it waits for its own copies, in
    commit groups of one block, or one vector, each."""

    segments = 0  # sweeps do not wait as those of `resident.Resident` do

    def __init__(
        self, plan: Plan, *, names: tuple[str, ...], dtypes: dict[str, str], allocator: Any, thread: Any,
        hinted: bool = True,
    ) -> None:  # fmt: skip
        self._plan, self._thread, self._hinted = plan, thread, hinted
        self._shared: dict[str, Any] = {}
        layout = cute.make_layout((plan.ring_steps * plan.threads * plan.space.vector,))
        for name in names:
            self._shared[name] = allocator.allocate_tensor(m.ELEMENT_TYPES[dtypes[name]], layout, byte_alignment=16)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._shared)

    def _cell(self, name: str, slot: Any) -> Any:
        vector = self._plan.space.vector
        place = (slot * self._plan.threads + self._thread) * vector
        pointer = self._shared[name].iterator + (cute.assume(place, divby=vector) if vector > 1 else place)
        return cute.make_tensor(pointer, cute.make_layout((vector,)))

    def request(self, at: Addresses, steps: list[Any], slots: list[Any]) -> None:
        """Start copying these steps' vectors into these slots. The copies pass the L1 by where they are wide enough,
        and, `hinted`, leave the L2 first: nobody reads them again."""
        for name in self._shared:
            for step, slot in zip(steps, slots, strict=True):
                source = at.vector(name, at.at_step(name, step), self._plan.space.vector)
                _copy(source, self._cell(name, slot), hinted=self._hinted)

    def get(self, name: str, slots: list[Any]) -> list[Any] | None:
        """Fragments of these slots; without slots, or of other operands, nothing is here."""
        if name not in self._shared or not slots:
            return None
        found = []
        for slot in slots:
            found.append(cute.make_rmem_tensor((self._plan.space.vector,), self._shared[name].element_type))
            cute.autovec_copy(self._cell(name, slot), found[-1])
        return found

    def put(self, name: str, slots: list[Any], fragments: list[Any]) -> None:
        """What was loaded beside the ring is not kept."""

    def swept(self, names: tuple[str, ...]) -> None:
        """A sweep leaves the ring as it is."""


def _copy(source: Any, target: Any, *, hinted: bool) -> None:
    """cp.async of one vector."""
    size = cute.size(source) * source.element_type.width // 8
    copy = f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global"
    text = f"{copy} [{{$r0}}], [{{$r1}}], {size};"
    if hinted:
        text = "{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0; "
        text += f"{copy}.L2::cache_hint [{{$r0}}], [{{$r1}}], {size}, policy; }}"
    cute.arch.inline_ptx(text, read_only_args=[Int32(target.iterator.toint()), source.iterator.toint()])
