"""Which renderer realises Programs for which target: the one table to extend with a new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..facts.candidate import SourceFile
from ..facts.problem import Target
from ..facts.space import Point, Space
from ..ir.program import Program
from .cpu import renderer as cpu
from .rows import renderer as cuda


class Renderer(Protocol):
    """What a target's module in this package offers."""

    def unsupported(self, program: Program) -> str | None:
        """Why this target can't realise the program, or None."""

    def space(self, program: Program) -> Space:
        """The knobs, and the points worth trying, likeliest winner first."""

    def any_rows(self, program: Program) -> bool:
        """Whether its kernel takes any number of rows, and not only as many as the program says."""

    def render(self, program: Program, name: str, point: Point) -> tuple[SourceFile, ...]:
        """`NAME.py` and what it needs of its own."""

    def skeleton_files(self, programs: Sequence[Program]) -> tuple[SourceFile, ...]:
        """The skeleton files that the rendered programs import, under `tilewright_kernels/`."""


def renderer(target: Target) -> Renderer:
    modules: dict[Target, Renderer] = {"cuda": cuda, "cpu": cpu}
    return modules[target]
