"""What a library offers that realises parts of a graph: ours (see table.py), or another package's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, TypeVar

from tilewright.facts.candidate import SourceFile
from tilewright.facts.device import Device
from tilewright.facts.pattern import Region
from tilewright.facts.space import Point
from tilewright.ir.graph import Graph

from ..realiser import Refused


def installed(package: str) -> bool:
    """Whether a distribution of this name is there; nothing is imported."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


Match = TypeVar("Match", bound="LibraryMatch")


def fitting(every: Sequence[Match], lack: Callable[[Match], str]) -> Sequence[Match] | Refused:
    """The matches in which the library lacks nothing; where that is none, its refusal of the first. `lack` gives what
    keeps the library from a match, as a sentence, and "" where nothing does."""
    found = [match for match in every if not lack(match)]
    return found if found or not every else Refused(lack(every[0]))


@dataclass(frozen=True, slots=True)
class LibraryMatch:
    """A part of a graph that a library realises; a library keeps what it needs to render it in a subclass."""

    region: Region
    title: str  # what is done there, readable, without the library's name: "attention"


class Library(Protocol):
    """An object of this shape is a row of the table; another package registers one as an entry point of the group
    `tilewright.realisers`. No method may run anything on a device: the judge measures what they give."""

    @property
    def name(self) -> str:
        """As reports name it."""

    def finds(self, graph: Graph, device: Device) -> Sequence[LibraryMatch] | Refused:
        """The parts that it realises, each of which makes one result; () where the graph has none."""

    def points(self, match: LibraryMatch, device: Device) -> tuple[Point, ...]:
        """The settings worth trying, likeliest winner first; () where there is nothing to choose."""

    def render(self, match: LibraryMatch, device: Device) -> tuple[SourceFile, ...]:
        """`model.py`, which defines `ModelNew`, a module without arguments whose forward takes the region's inputs in
        order and returns its result, contiguous or laid out as the graph has it. Where there are points, it also
        defines `configure`, which takes a point's settings by name and raises ValueError for one that can't be used;
        until it is called the first point holds. What is imported is imported there."""
