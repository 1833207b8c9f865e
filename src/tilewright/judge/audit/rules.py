"""From figures to findings: thresholds and words. Pure.

A result got with less work (a DegenerateSolution) that the precision contract would accept is a hole in the task:
`void` where it needs none of the work, `weak` where it needs a part. What the contract refuses and a fixed tolerance
lets pass is `weak` too, since others judge with such tolerances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...facts.audit import TOLERANCES, DegenerateSolution, Figures, Finding, Kind, Severity

SATURATED = 0.99  # share of equal elements
ABSURD = 20.0  # times the floor
ONE_DISTRIBUTION = 0.05  # of the inputs' deviation
SHARED_STREAM = 0.5  # correlation
LAUNCH_NS = {"cuda": 10e3, "cpu": 20e3}  # what one operation takes however little it does

_WHOLE: Mapping[Kind, tuple[str, str]] = {
    "zeros": ("constant", "zeros are accepted as the result"),
    "constant": ("constant", "one constant is accepted as the result"),
    "previous": ("ignores_inputs", "the result on other inputs is accepted"),
    "copy": ("copies_input", "a copy of an input is accepted as the result"),
}
_PART: Mapping[Kind, tuple[str, str]] = {
    "rows": ("repeats", "the result is the same along its last dimension"),
    "columns": ("repeats", "the result is the same along its first dimension"),
    "input": ("ignores_input", "it may be anything, the result is accepted: {}"),
    "state": ("ignores_state", "they may hold anything, the result is accepted: {}"),
    "skip": ("idle_operation", "without them the result is accepted: {}"),
    "cut": ("cancels", "their results may be noise, what is returned is accepted: {}"),
}


def findings(figures: Figures, target: str) -> tuple[Finding, ...]:
    """All that the figures say, the gravest first."""
    found = [
        *_noise(figures), *_whole(figures.degenerate_solutions), *_heavy(figures.degenerate_solutions),
        *_parts(figures.degenerate_solutions), *_allow_tf32(figures.degenerate_solutions), *_saturated(figures),
        *_random(figures), *_baseline(figures, target), *_notes(figures),
    ]  # fmt: skip
    order = ("void", "weak", "note")
    return tuple(sorted(found, key=lambda f: order.index(f.severity)))


def _noise(figures: Figures) -> Iterable[Finding]:
    if figures.exact and not figures.random and figures.own_error > figures.own_limit:
        summary = "the result is rounding noise: the module itself is this far off its float64 truth"
        mended = any(
            s.judged_share is not None for s in figures.degenerate_solutions
        )  # there the module could be judged
        summary += "; not so on the judge's own inputs and weights" if mended else ""
        yield _finding("void", "noise", summary, figures.own_error, figures.own_limit, mended=mended)


def _whole(degenerate_solutions: Sequence[DegenerateSolution]) -> Iterable[Finding]:
    """What needs none of the work: one finding for each way, of all that passes."""
    for kind, (reason, summary) in _WHOLE.items():
        for part in (False, True):
            passing = [s for s in degenerate_solutions if s.kind == kind and s.passes and s.part == part]
            trivial = kind == "constant" and any(
                s.kind == "zeros" and s.passes and s.part == part for s in degenerate_solutions
            )
            if passing and not trivial:
                yield _from("weak" if part else "void", reason, summary, passing)


def _heavy(degenerate_solutions: Sequence[DegenerateSolution]) -> Iterable[Finding]:
    """Products and convolutions whose results may be noise."""
    passing = [s for s in degenerate_solutions if s.kind == "cut" and s.heavy and s.passes]
    if passing:
        severity: Severity = "weak" if all(s.mended for s in passing) else "void"
        yield _from(severity, "main_work_cancels", "the main work may give noise, the result is accepted: {}", passing)


def _parts(degenerate_solutions: Sequence[DegenerateSolution]) -> Iterable[Finding]:
    """What needs a part of the work. Where other weights mend it (a scale of one, a bias of zero), it is a note."""
    for kind, (reason, summary) in _PART.items():
        for mended in (False, True):
            passing = [s for s in degenerate_solutions if s.kind == kind and s.passes and s.mended == mended]
            passing = [s for s in passing if not (kind == "cut" and s.heavy)]
            if passing:
                yield _from("note" if mended else "weak", reason, summary, passing)


def _allow_tf32(degenerate_solutions: Sequence[DegenerateSolution]) -> Iterable[Finding]:
    """What a fixed tolerance lets pass and the contract refuses; the tightest such tolerance alone."""
    for tolerance in TOLERANCES:
        whole = [s for s in degenerate_solutions if not s.part and (s.kind in _WHOLE or (s.heavy and s.kind == "cut"))]
        passing = [s for s in whole if not s.passes and s.allow_tf32 <= tolerance]
        if passing:
            names = tuple(f"{s.kind} {s.name}".strip() for s in passing)
            summary = f"allclose with a tolerance of {tolerance:g} accepts: {', '.join(names)}"
            yield _finding("weak", "inside_tolerance", summary, min(s.allow_tf32 for s in passing), tolerance, names)
            return


def _saturated(figures: Figures) -> Iterable[Finding]:
    if figures.equal_share >= SATURATED and not any(
        s.kind == "constant" and s.passes for s in figures.degenerate_solutions
    ):
        summary = f"nearly all elements of the result are {figures.commonest:g}"
        yield _finding("weak", "saturated", summary, figures.equal_share, SATURATED)


def _random(figures: Figures) -> Iterable[Finding]:
    if figures.random:
        summary = "the module draws random numbers: no candidate can be compared with it element by element"
        yield _finding("weak", "random", summary, 1.0, 0.0)


def _baseline(figures: Figures, target: str) -> Iterable[Finding]:
    """One operation that is so slow is slow in itself; of several, the results between them, which the floor leaves
    out, may be what takes the time."""
    floor_ns = max(figures.floor_ns, figures.operations * LAUNCH_NS[target])
    ratio = figures.eager_ns / floor_ns
    if ratio > ABSURD:
        summary = "eager takes this many times what the hardware must: a speed-up over it says little"
        yield _finding("weak" if figures.operations < 2 else "note", "absurd_baseline", summary, ratio, ABSURD)


def _notes(figures: Figures) -> Iterable[Finding]:
    if figures.cases < 2:
        yield _finding("note", "one_shape", "there is one case: a kernel for this shape alone wins", 1.0, 2.0)
    if figures.input_shift < ONE_DISTRIBUTION:
        summary = "inputs come from one distribution: mean and deviation are the same for every seed"
        yield _finding("note", "one_distribution", summary, figures.input_shift, ONE_DISTRIBUTION)
    if figures.stream > SHARED_STREAM:
        summary = "inputs and weights that follow the same seed are correlated: draw them from two"
        yield _finding("note", "shared_stream", summary, figures.stream, SHARED_STREAM)
    if figures.unmeasured:
        summary = "for so many ways there was no time"
        yield _finding("note", "unmeasured", summary, float(figures.unmeasured), 0.0)


def _from(severity: Severity, reason: str, summary: str, passing: Sequence[DegenerateSolution]) -> Finding:
    names = tuple(dict.fromkeys(s.name for s in passing if s.name))
    text = summary.format(", ".join(names)) if "{}" in summary else ": ".join((summary, ", ".join(names))).rstrip(": ")
    mended = all(s.mended for s in passing)
    if mended:
        text += "; not so on the judge's own inputs and weights"
    return _finding(severity, reason, text, max(s.share for s in passing), 1.0, names, mended=mended)


def _finding(
    severity: Severity, reason: str, summary: str, figure: float, threshold: float, names: tuple[str, ...] = (),
    *, mended: bool = False,
) -> Finding:  # fmt: skip
    return Finding(severity=severity, reason=reason, summary=summary, figure=figure, threshold=threshold, names=names,
                   mended=mended)  # fmt: skip
