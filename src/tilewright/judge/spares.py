"""The cells of candidates: one is always there before it is needed, and has imported torch, the packages that the
problem's file imports, on a GPU the DSL, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..facts.errors import HarnessError
from ..facts.problem import Target
from .client import Cell
from .memory.case_memory import try_arena

_MEMORY_PAUSE_S = 1.0
_MEMORY_LIMIT_S = 60.0  # for a candidate of another judge that holds all of a GPU's memory to be found out


class Spares:
    """`start` starts a cell for a candidate, with namespaces of its own or without; `note` tells of a lack."""

    def __init__(self, target: Target, start: Callable[[bool], Cell], note: Callable[[str], None]) -> None:
        self._target, self._start, self._note = target, start, note
        self._namespaces = True
        self._arenas_work = target == "cpu"  # on a GPU that is tried first
        self._spare: Cell | None = None

    def start(self) -> None:
        self._spare = self._start(self._namespaces)

    def settle(self) -> None:
        """Wait until the spare has started, so that its start does not disturb a clock; there is none afterwards where
        a GPU has no memory left for it."""
        if self._spare is not None and not _comes_up(self._spare):
            self._spare = None

    def take(self) -> Cell:
        """A fresh cell, the caller's to close; the next one starts at once."""
        spare, self._spare = self._spare, None
        deadline = time.monotonic() + _MEMORY_LIMIT_S
        if spare is None or not spare.alive:
            spare = self._start(self._namespaces)
        while not _comes_up(spare, last=time.monotonic() > deadline):
            time.sleep(_MEMORY_PAUSE_S)
            spare = self._start(self._namespaces)
        spare = self._with_arenas(spare)
        self.start()
        return spare

    def close(self) -> None:
        if self._spare is not None:
            self._spare.close()
        self._spare = None

    def _with_arenas(self, cell: Cell) -> Cell:
        """The cell, or a less isolated one where device memory can't be shared with namespaces between; tried once a
        run, so that a kernel's lack is not booked on a candidate."""
        if self._arenas_work:
            return cell
        why = try_arena(cell, self._target)
        if why:
            cell.close()
            self._namespaces = False
            self._note(f"candidates run without namespaces: device memory can't be shared across them here ({why})")
            cell = self._start(False)
            why = try_arena(cell, self._target)
        if why:
            cell.close()
            raise HarnessError(f"device memory can't be shared between processes here: {why}")
        self._arenas_work = True
        return cell


def _comes_up(cell: Cell, *, last: bool = False) -> bool:
    """Wait until the cell is ready. Where a GPU had no memory left for it, it is closed, and the answer False; unless
    this is the `last` attempt. Raises HarnessError."""
    try:
        cell.wait_ready()
    except HarnessError as error:
        cell.close()
        if last or "out of memory" not in str(error):
            raise
        return False
    return True
