"""A CaseMemory: the arenas of one case, and who may see what lies in them.

The *private* arena is mapped by the reference's cell alone. It holds the pool (pristine sets of inputs), the state,
what the reference returned and the float64 truth. The *shared* arena is mapped by a candidate's cell (and by
baselines while they are timed): slots, into which the judge copies pool sets, and places for state and results. So
the judge decides which contents stand at which address, and sees for itself whether a candidate changed its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor

from ..client import Cell, CellFault, CellLimits
from ..wire import messages as wire
from .arena import Arena, bytes_of
from .images import Image
from .mapped import exchange
from .moved import CaseState
from .places import CaseArenas, CaseMemorySizes, Refs, as_returned, laid_out
from .sameness import one_thread, same_bits
from .truths import Truths


class CaseMemory(AbstractContextManager["CaseMemory"]):
    """See the module's docstring. Pool sets, slots and places for results are numbered from 0."""

    def __init__(
        self, described: wire.Described, *, device: str, reference: Cell, limits: CellLimits, sizes: CaseMemorySizes
    ) -> None:
        self.described = described
        self.device = device
        self.limits = limits
        self.pool, self.slots, self.places = sizes.pool, sizes.slots, sizes.results
        self.tight = sizes.tight
        self._reference = reference
        self._guests: list[Cell] = []
        self._places = laid_out(described, sizes)
        self.shared_init = self._places.init
        self._arenas = CaseArenas(self._places, device)
        self.state = CaseState(
            described, reference=reference, arenas=self._arenas, places=self._places, limits=limits
        )  # fmt: skip
        self.truths = Truths(
            described, self.state, reference=reference, arenas=self._arenas, places=self._places, limits=limits
        )  # fmt: skip
        try:
            reference.map_arena(self._arenas.private.message(), self._arenas.private.descriptor)
            self.admit(reference)
            if self.shared_init:
                reference.do(wire.StoreInit(refs=self.shared_init))
        except BaseException:
            self.close()
            raise

    # ---- who is in

    def admit(self, cell: Cell) -> None:
        """Map the shared arena in a cell."""
        cell.map_arena(self._arenas.shared.message(), self._arenas.shared.descriptor)
        self._guests.append(cell)

    @property
    def guests(self) -> tuple[Cell, ...]:
        """Who is in, the reference among them."""
        return tuple(self._guests)

    def close(self) -> None:
        """Unmap everywhere that still lives, and free."""
        for cell in self._guests:
            _unmap(cell, "shared")
        _unmap(self._reference, "private")
        self._guests.clear()
        self._arenas.close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- contents

    def draw(self, k: int, *, family: str, seed: int, upstream: str = "normal") -> None:
        """Fill pool set `k`; in training with upstream gradients of the given kind."""
        request = wire.MakeInputs(seed=seed, family=family, upstream=upstream, refs=self._places.pool[k])
        self._reference.do(request, limit_s=self.limits.call_s)

    def settle(self) -> None:
        """What the judge wrote is seen by the other processes from here on."""
        self._arenas.settle()

    def place(self, k: int, slot: int) -> None:
        """Copy pool set `k` into a slot, byte by byte."""
        if self._places.input_bytes:
            source = self._arenas.private.bytes_at(self._places.pool[k][0].offset, self._places.input_bytes)
            self._arenas.shared.bytes_at(self._places.slots[slot][0].offset, self._places.input_bytes).copy_(source)
            self._arenas.settle()

    def image(self, sets: Sequence[int], first_slot: int) -> Image | None:
        """These pool sets, to be laid over as many slots from the first on; None where there is nothing to lay."""
        if self.device != "cpu" or not self._places.input_bytes:
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
        self.settle()

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

    def result_refs(self, place: int) -> Refs:
        return self._places.results[place]

    def results(self, place: int) -> tuple[Tensor, ...]:
        return tuple(self._arenas.shared.tensor(r) for r in self._places.results[place])

    def record(self, k: int, path: Path) -> None:
        """Write copies of the constructor's tensors, the state and pool set `k` to a file that `torch.load` reads."""
        private = {"state": self._places.state, "inputs": self._places.pool[k]}
        copies = {name: [self._arenas.private.tensor(r).cpu().clone() for r in refs] for name, refs in private.items()}
        copies["init"] = [self._arenas.shared.tensor(r).cpu().clone() for r in self.shared_init]
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(copies, path)

    def poison_bytes(self) -> tuple[int, ...]:
        return tuple(bytes_of(s) for s in as_returned(self.described))


def _unmap(cell: Cell, name: str) -> None:
    if cell.alive:
        try:
            cell.do(wire.UnmapArena(name=name))
        except CellFault:
            cell.kill()  # whatever it is about, it must not keep the memory


def try_arena(cell: Cell, device: str) -> str:
    """Whether a cell can map an arena of the device: "" or why not."""
    arena = Arena("trial", 4096, device)
    try:
        cell.map_arena(arena.message(), arena.descriptor)
        cell.do(wire.UnmapArena(name="trial"))
    except CellFault as fault:
        return fault.summary
    finally:
        arena.close()
    return ""
