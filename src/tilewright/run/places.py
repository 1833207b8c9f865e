"""Where a run keeps its things, and what carries out its moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from ..facts.machine import Machine
from ..facts.move import Move, Outcome
from ..facts.outcome import Station
from ..facts.run import Request, SearchContext
from ..search.retrieve import lessons
from ..search.retrieve import store as table
from ..search.tune import memory

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a run keeps its things: `out` its own folder, `cache` what is shared between runs on this machine;
    `shipped`: the winners that came with the package."""

    out: Path
    cache: Path
    shipped: Path = memory.SHIPPED

    @property
    def journal(self) -> Path:
        return self.out / "run.db"

    @property
    def candidate(self) -> Path:
        return self.out / "candidate"

    @property
    def libraries(self) -> Path:
        """Of compiled kernels."""
        return self.cache / "libraries"

    @property
    def realised(self) -> Path:
        """The table of what was realised before."""
        return self.cache / table.FOLDER

    @property
    def lessons(self) -> Path:
        """What earlier runs have learnt."""
        return self.cache / lessons.FOLDER

    @property
    def winners(self) -> Path:
        return self.cache / memory.FILE


class Bench(Protocol):
    """What carries out all moves of a run but a model's: `Evaluator`, or a fake one."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def context(self, request: Request) -> SearchContext: ...

    def perform(self, context: SearchContext, move: Move) -> Outcome: ...

    def held(self) -> tuple[Station, ...]: ...

    def start_afresh(self) -> None: ...


class BenchOf(Protocol):
    def __call__(self, request: Request, *, places: Places, say: Say, machine: Machine | None) -> Bench: ...
