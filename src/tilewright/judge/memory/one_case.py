"""One case as the parts of its memory see it: what it is, who holds its reference, and where its tensors lie."""

from __future__ import annotations

from dataclasses import dataclass

from ..client import Cell, CellLimits
from ..wire import messages as wire
from .places import CaseArenas, ResultPlaces


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCase:
    described: wire.Described
    reference: Cell
    arenas: CaseArenas
    places: ResultPlaces
    limits: CellLimits
