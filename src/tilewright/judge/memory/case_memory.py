"""A CaseMemory: the arenas of one case, and who may see what lies in them.

The *private* arena is mapped by the reference's cell alone. It holds the pool (pristine sets of inputs), the state,
what the reference returned and the float64 truth. The *shared* arena is mapped by a candidate's cell (and by
baselines while they are timed): slots, into which the judge copies pool sets, and places for state and results. So
the judge decides which contents stand at which address, and sees for itself whether a candidate changed its inputs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor

from ..client import Cell, CellFault, CellLimits
from ..wire import messages as wire
from .appeals import Appeals
from .arena import Arena, bytes_of
from .input_sets import InputSets
from .moved import CaseState
from .one_case import OneCase
from .places import CaseArenas, CaseMemorySizes, Refs, as_returned, laid_out
from .truths import Truths


class CaseMemory(AbstractContextManager["CaseMemory"]):
    """See the module's docstring. Pool sets, slots and places for results are numbered from 0."""

    def __init__(
        self, described: wire.Described, *, device: str, reference: Cell, limits: CellLimits, sizes: CaseMemorySizes
    ) -> None:
        self.described, self.device, self.limits = described, device, limits
        self.pool, self.slots, self.places = sizes.pool, sizes.slots, sizes.results
        self.tight = sizes.tight
        self._reference = reference
        self._guests: list[Cell] = []
        self._places = laid_out(described, sizes)
        self.shared_init = self._places.init
        self._arenas = CaseArenas(self._places, device)
        case = OneCase(
            described=described, reference=reference, arenas=self._arenas, places=self._places, limits=limits
        )
        self.state, self.sets, self.appeals = CaseState(case), InputSets(case), Appeals(case)
        self.truths = Truths(case, self.state)
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

    def settle(self) -> None:
        """What the judge wrote is seen by the other processes from here on."""
        self._arenas.settle()

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
