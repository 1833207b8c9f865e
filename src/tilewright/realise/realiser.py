"""What every realiser offers: one folder here, one row of `table`, or an entry point of another package."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Protocol

from ..facts.candidate import SourceFile
from ..facts.device import Device
from ..facts.problem import Target
from ..facts.space import Point, Space
from ..ir.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A realiser makes the program on the device. `open`: dimensions of the domain of which one kernel takes any size,
    not only the program's. `ranked`: its points are in the order of a model of its own, since bytes say nothing of
    their times. `guess`: a library may well be faster at the likeliest point. `kernel`: the name in `table.UNPROVEN` of
    what makes it, if it was ever there."""

    open: frozenset[int] = frozenset()
    ranked: bool = False
    guess: bool = False
    kernel: str = ""

    @property
    def any_rows(self) -> bool:
        return 0 in self.open


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a realiser does not make a program: the sentence, without a full stop, that a user reads. `foreign`: the
    program is of a kind that this realiser is not for, which says nothing about the program."""

    why: str
    foreign: bool = False


class Realiser(Protocol):
    """A kind of kernels, for one target. Pure: equal arguments give equal results."""

    @property
    def target(self) -> Target:
        """The target that its kernels run on."""

    @property
    def digest(self) -> str:
        """The name of the digest under which winners are kept; realisers of the same skeletons share one."""

    @property
    def writers(self) -> tuple[str, ...]:
        """The files of `realise/` that decide what its kernels are, beside `skeleton_files`."""

    def fits(self, program: Program, device: Device) -> Fit | Refused:
        """Whether it makes the program on the device, or why not."""

    def points(self, program: Program, device: Device) -> Space:
        """The knobs of a program that fits, and the points worth trying, likeliest winner first."""

    def render(self, program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
        """`NAME.py`, the entry point of a program that fits, and the files that it needs of its own."""

    def skeleton_files(self) -> tuple[SourceFile, ...]:
        """The files that rendered ones share, under `tilewright_kernels/`; realisers may share some, with one text."""


def refused(
    why: str | None, *, open: Collection[int] = (), ranked: bool = False, guess: bool = False, kernel: str = ""
) -> Fit | Refused:
    """A Refused for this reason, or a Fit where there is none."""
    return Fit(open=frozenset(open), ranked=ranked, guess=guess, kernel=kernel) if why is None else Refused(why)


def copied(paths: Sequence[str]) -> tuple[SourceFile, ...]:
    """Files of `kernels/`, verbatim, for the folder `tilewright_kernels/`."""
    root = files("tilewright.kernels")
    return tuple(
        SourceFile(path=f"tilewright_kernels/{path}", text=root.joinpath(path).read_text(encoding="utf-8"))
        for path in paths
    )


# What compiles and looks on is no candidate's, and what a module is guarded by comes with every candidate.
_NOT_CARRIED = (
    "ahead.py", "compiled.py", "contents.py", "cubin.py", "demand.py", "graphed.py", "guards.py", "nvcc.py",
    "reached.py", "survey.py", "watched.py",
)  # fmt: skip


def carried(folders: Sequence[str]) -> tuple[SourceFile, ...]:
    """The skeletons of folders of `kernels/` ("" is that itself), those below left out, as `copied` has them."""
    root = files("tilewright.kernels")
    return copied([
        f"{folder}/{name}".lstrip("/")
        for folder in folders
        for name in sorted(file.name for file in root.joinpath(folder).iterdir())
        if name.endswith(".py") and name not in _NOT_CARRIED
    ])  # fmt: skip
