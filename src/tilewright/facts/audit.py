"""An Audit: what was measured of a problem itself, and what that says of scores on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["void", "weak", "note"]
Kind = Literal["zeros", "constant", "rows", "columns", "copy", "previous", "input", "state", "skip", "cut"]
WHOLE: tuple[Kind, ...] = ("zeros", "constant", "copy", "previous")  # they need none of the work
TOLERANCES = (1e-4, 1e-2)  # of allclose, both relative and absolute: what KernelBench asks now, and what it asked once
MOST = 1e12  # stands for every larger figure, and for what is not finite


@dataclass(frozen=True, slots=True, kw_only=True)
class DegenerateSolution:
    """A result got with less work than the module does, held against the module's own.

    `kind`: zeros; one constant; each row (last dimension) or column (first dimension) replaced by its mean; a copy of
    an input; the result on other inputs (previous); the result after one input, or one parameter or buffer (state),
    was drawn anew; after one operation was left out (skip), or its result replaced by noise (cut)."""

    kind: Kind
    name: str  # of the input, state or operation; empty where there is none
    share: float  # of what the precision contract allows; at most 1 passes
    norm: float  # |y - t| / |t|
    allow_tf32: float  # max |y - r| / (1 + |r|): the least tolerance at which allclose(rtol=tol, atol=tol) holds
    part: bool = False  # it is about one of several outputs
    heavy: bool = False  # of an operation: a matrix product, a convolution or the like
    judged_share: float | None = None  # `share` on the judge's own inputs and weights, where `share` passes

    @property
    def passes(self) -> bool:
        return self.share <= 1.0

    @property
    def mended(self) -> bool:
        """Whether the judge's own inputs and weights refuse what the task as written lets pass."""
        return self.judged_share is not None and self.judged_share > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured of the first case, on the problem's own inputs and the state as constructed."""

    outputs: int
    scale: float  # root mean square of the outputs
    spread: float  # standard deviation of the outputs / scale
    equal_share: float  # of the elements that hold the commonest value
    commonest: float
    own_error: float  # of the module against itself in float64, in the norm
    own_limit: float  # beyond which that error leaves nothing to compare with
    exact: bool  # there is a float64 truth
    random: bool  # the module draws random numbers
    degenerate_solutions: tuple[DegenerateSolution, ...]
    unmeasured: int  # degenerate_solutions for which there was no time, or at which the module raised
    operations: int
    cases: int
    input_shift: float  # how far the inputs' mean and deviation move between seeds, relative to the deviation
    stream: float  # largest correlation between a parameter and an input that follow the same seed
    eager_ns: float
    floor_ns: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`void`: a score means nothing. `weak`: part of the work can be left out. `note`: worth knowing."""

    severity: Severity
    reason: str  # a slug
    summary: str  # one sentence
    figure: float
    threshold: float
    names: tuple[str, ...] = ()
    mended: bool = False  # the judge's own inputs and weights do away with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    problem: str
    target: str
    device: str
    figures: Figures
    findings: tuple[Finding, ...]
    seconds: float
    waited_s: float = 0.0  # of these, for others that measured on the device
    stations_s: tuple[tuple[str, float], ...] = ()  # what the module's cell was asked for, the longest first

    @property
    def verdict(self) -> Literal["void", "weak", "sound"]:
        found = {f.severity for f in self.findings}
        return "void" if "void" in found else "weak" if "weak" in found else "sound"
