"""Sets of inputs: drawn into a pool that the reference's process alone maps, and copied into slots that guests map."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..wire import messages as wire
from .images import Image
from .mapped import exchange
from .one_case import OneCase
from .places import Refs
from .sameness import one_thread, same_bits


class InputSets:
    """Of one case; pool sets and slots are numbered from 0."""

    def __init__(self, case: OneCase) -> None:
        self._reference, self._limits = case.reference, case.limits
        self._arenas, self._places = case.arenas, case.places

    def draw(self, k: int, *, family: str, seed: int, upstream: str = "normal") -> None:
        """Fill pool set `k`; in training with upstream gradients of the given kind."""
        request = wire.MakeInputs(seed=seed, family=family, upstream=upstream, refs=self._places.pool[k])
        self._reference.do(request, limit_s=self._limits.call_s)

    def place(self, k: int, slot: int) -> None:
        """Copy pool set `k` into a slot, byte by byte."""
        if self._places.input_bytes:
            source = self._arenas.private.bytes_at(self._places.pool[k][0].offset, self._places.input_bytes)
            self._arenas.shared.bytes_at(self._places.slots[slot][0].offset, self._places.input_bytes).copy_(source)
            self._arenas.settle()

    def image(self, sets: Sequence[int], first_slot: int) -> Image | None:
        """These pool sets, to be laid over as many slots from the first on; None where there is nothing to lay."""
        if self._arenas.device != "cpu" or not self._places.input_bytes:
            return None
        starts = [self._places.slots[first_slot + i][0].offset for i in range(len(sets))]
        image = Image(starts[0], starts[-1] + self._places.input_bytes)
        for k, start in zip(sets, starts, strict=True):
            image.write(start, self._arenas.private.bytes_at(self._places.pool[k][0].offset, self._places.input_bytes))
        return image

    def inputs(self, k: int) -> tuple[Tensor, ...]:
        """Pool set `k` itself."""
        return tuple(self._arenas.private.tensor(r) for r in self._places.pool[k])

    def swap(self, swaps: Sequence[wire.Swap]) -> None:
        """Carry out between the pool sets what a cell is to do in the slots of their numbers. A timed call follows: a
        second thread would wait for more to do while its clock runs."""
        with one_thread():
            for s in swaps:
                one = self._arenas.private.tensor(self._places.pool[s.slot][s.input])
                other = self._arenas.private.tensor(self._places.pool[s.other][s.input])
                if s.dim >= 0:
                    one, other = one.narrow(s.dim, s.start, s.count), other.narrow(s.dim, s.other_start, s.count)
                exchange(one, other)
        self._arenas.settle()

    def changed_input(self, k: int, slot: int, image: Image | None = None) -> int:
        """The first input of the slot, or of the image that lies over it, that is not pool set `k` any more; -1 where
        none is."""
        refs = self._places.slots[slot]
        shown = [self._arenas.shared.tensor(r) for r in refs] if image is None else image.tensors(refs)
        pairs = enumerate(zip(self.inputs(k), shown, strict=True))
        return next((i for i, (mine, theirs) in pairs if not same_bits(mine, theirs)), -1)

    def inputs_at(self, k: int) -> Refs:
        """Pool set `k`, for the reference."""
        return self._places.pool[k]

    def slot(self, number: int) -> Refs:
        return self._places.slots[number]
