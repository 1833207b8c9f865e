"""From figures to findings: thresholds, gravity, and what the judge's own inputs mend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.facts.audit import Audit, DegenerateSolution, Figures, Finding
from tilewright.judge.audit import findings

SOUND = Figures(
    outputs=1,
    scale=1.0,
    spread=0.5,
    equal_share=0.01,
    commonest=0.0,
    own_error=1e-7,
    own_limit=0.05,
    exact=True,
    random=False,
    degenerate_solutions=(),
    unmeasured=0,
    operations=3,
    cases=2,
    input_shift=0.3,
    stream=0.0,
    eager_ns=1e6,
    floor_ns=1e5,
)


def degenerate_solution(kind: str, share: float, *, allow_tf32: float = 1.0, **more: object) -> DegenerateSolution:
    return DegenerateSolution(kind=kind, name="", share=share, norm=share / 1e6, allow_tf32=allow_tf32, **more)  # type: ignore[arg-type]


def found(**changes: object) -> dict[str, Finding]:
    return {f"{f.severity} {f.reason}": f for f in findings(replace(SOUND, **changes), "cuda")}  # type: ignore[arg-type]


def audit(**changes: object) -> Audit:
    figures = replace(SOUND, **changes)  # type: ignore[arg-type]
    return Audit(problem="p", target="cuda", device="d", figures=figures, findings=findings(figures, "cuda"), seconds=1)


def test_nothing_to_say() -> None:
    refused = tuple(
        degenerate_solution(kind, 1.01) for kind in ("zeros", "constant", "copy", "previous", "state", "skip", "cut")
    )
    assert found() == {} and found(degenerate_solutions=refused) == {}
    assert audit().verdict == "sound"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("zeros", "constant"), ("constant", "constant"), ("previous", "ignores_inputs"), ("copy", "copies_input")],
)
def test_what_needs_no_work_is_void_though_mended(kind: str, reason: str) -> None:
    assert list(found(degenerate_solutions=(degenerate_solution(kind, 1.0),))) == [f"void {reason}"]
    assert audit(degenerate_solutions=(degenerate_solution(kind, 1.0),)).verdict == "void"
    mended = found(degenerate_solutions=(degenerate_solution(kind, 0.5, judged_share=9.0),))[f"void {reason}"]
    assert mended.mended and "not so on the judge's own" in mended.summary
    assert not found(degenerate_solutions=(degenerate_solution(kind, 0.5, judged_share=0.9),))[f"void {reason}"].mended
    assert list(found(degenerate_solutions=(degenerate_solution(kind, 0.5, part=True),))) == [f"weak {reason}"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("rows", "repeats"), ("columns", "repeats"), ("input", "ignores_input"), ("state", "ignores_state"),
     ("skip", "idle_operation"), ("cut", "cancels")],
)  # fmt: skip
def test_what_needs_a_part_of_the_work_is_weak_unless_mended(kind: str, reason: str) -> None:
    assert list(found(degenerate_solutions=(degenerate_solution(kind, 1.0),))) == [f"weak {reason}"]
    assert audit(degenerate_solutions=(degenerate_solution(kind, 1.0),)).verdict == "weak"
    assert list(found(degenerate_solutions=(degenerate_solution(kind, 1.0, judged_share=2.0),))) == [f"note {reason}"]
    assert audit(degenerate_solutions=(degenerate_solution(kind, 1.0, judged_share=2.0),)).verdict == "sound"


def test_main_work_whose_result_may_be_noise() -> None:
    assert list(found(degenerate_solutions=(degenerate_solution("cut", 0.2, heavy=True),))) == [
        "void main_work_cancels"
    ]
    assert list(found(degenerate_solutions=(degenerate_solution("cut", 0.2, heavy=True, judged_share=5.0),))) == [
        "weak main_work_cancels"
    ]


def test_rounding_noise() -> None:
    assert found(own_error=0.06)["void noise"].figure == 0.06 and not found(own_error=0.06)["void noise"].mended
    assert found(own_error=0.06, degenerate_solutions=(degenerate_solution("zeros", 0.1, judged_share=7.0),))[
        "void noise"
    ].mended
    assert found(own_error=0.04) == {} and found(own_error=0.06, exact=False) == {}
    assert list(found(own_error=0.06, random=True)) == ["weak random"]


def test_fixed_tolerances() -> None:
    tight, wide = (
        degenerate_solution("zeros", 500.0, allow_tf32=5e-5),
        degenerate_solution("constant", 500.0, allow_tf32=5e-3),
    )
    assert found(degenerate_solutions=(tight, wide))["weak inside_tolerance"].names == ("zeros",)
    assert found(degenerate_solutions=(wide,))["weak inside_tolerance"].threshold == 1e-2
    assert found(degenerate_solutions=(degenerate_solution("zeros", 500.0, allow_tf32=0.011),)) == {}
    assert found(degenerate_solutions=(degenerate_solution("state", 500.0, allow_tf32=1e-5),)) == {}, (
        "a small parameter is no fault of the task"
    )


def test_saturation_baseline_and_notes() -> None:
    assert found(equal_share=0.995, commonest=1.0)["weak saturated"].summary.endswith("are 1")
    assert found(eager_ns=2.1e6, operations=1)["weak absurd_baseline"].figure == pytest.approx(21)
    assert list(found(eager_ns=2.1e6)) == ["note absurd_baseline"], "results between operations take time too"
    assert found(eager_ns=2.1e6, operations=30) == {}, "launches take their time"
    notes = found(cases=1, input_shift=0.01, stream=0.9, unmeasured=4)
    assert list(notes) == ["note one_shape", "note one_distribution", "note shared_stream", "note unmeasured"]


def test_the_gravest_first() -> None:
    said = list(
        found(degenerate_solutions=(degenerate_solution("skip", 0.1), degenerate_solution("previous", 0.1)), cases=1)
    )
    assert said == ["void ignores_inputs", "weak idle_operation", "note one_shape"]
