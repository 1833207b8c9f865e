"""A Realised entry of the local table: what solved a subproblem, or a whole module, and on what its trust rests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .candidate import Candidate
from .machine import Machine
from .outcome import Interval
from .pattern import Recipe, inductor_mode
from .problem import Problem
from .winner import Toolchain, toolchain


@dataclass(frozen=True, slots=True, kw_only=True)
class Realised:
    """`key` is a subproblem's (equal for equal computations on tensors of the same shapes, strides and dtypes) or a
    whole problem's digest; `problem` is how it is judged anew, its path "". `ratio`: eager's time over ours there,
    `time_ns` ours; `error`: the share of the allowance that its worst comparison used. `judged`: here, not only where
    it comes from, nor only as the whole of a module. `candidate`: the id of the files that were judged."""

    key: str
    title: str
    problem: Problem
    what: Candidate | Recipe
    model: str  # that was at hand when it was found; "": none
    device: str
    toolchain: Toolchain
    ratio: Interval
    time_ns: Interval
    floor_share: float
    error: float
    run: str
    journal: str
    found_at: str  # UTC, ISO 8601
    judged: bool = True
    candidate: str = ""
    shape_class: str = ""  # of a subproblem: equal for such with nearly as many rows; "": not known, or it has none

    @property
    def by(self) -> Literal["skeleton", "library", "model"]:
        """Whose it is: a model's where any of it is one's, else a library's, or torch.compile's, where any of it is."""
        if isinstance(self.what, Candidate):
            return self.what.by
        whose = {choice.written.candidate.by for choice in self.what if choice.written is not None}
        whose |= {"library"} if inductor_mode(self.what) else set()
        return "model" if "model" in whose else "library" if whose else "skeleton"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the table holds for a pattern of the main case (its id), or for the whole module (""). `doubt`: why it must
    be judged again before it is trusted; "": it need not."""

    name: str
    realised: Realised
    doubt: str


def doubt(realised: Realised, machine: Machine, *, tilewright: str) -> str:
    """Why an entry is not to be trusted on this machine as it is now; "" where it is."""
    if not realised.judged:
        return "not judged by itself here yet"
    if realised.device != machine.device:
        return f"judged on {realised.device}"
    then, now = realised.toolchain, toolchain(machine, tilewright=tilewright)
    changed = [
        f"{name} was {getattr(then, name)}, is {getattr(now, name)}"
        for name in Toolchain.__dataclass_fields__
        if getattr(then, name) != getattr(now, name)
    ]
    return "; ".join(changed)
