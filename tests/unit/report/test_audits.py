"""Audits drawn: what a reader sees of one task, and the sums over many."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console, RenderableType

from tilewright.facts.audit import MOST, Audit, DegenerateSolution, Figures
from tilewright.judge.audit import findings
from tilewright.report import audit_object, audit_table, audits_summary, audits_table, degenerate_table

ZEROS = DegenerateSolution(kind="zeros", name="", share=0.25, norm=1.0, allow_tf32=1e-9, judged_share=4.0)
CUT = DegenerateSolution(kind="cut", name="linear[0]", share=MOST, norm=3.0, allow_tf32=2.0, heavy=True)


def audit(name: str, *degenerate_solutions: DegenerateSolution) -> Audit:
    figures = Figures(
        outputs=1,
        scale=1.0,
        spread=0.5,
        equal_share=0.01,
        commonest=0.0,
        own_error=1e-7,
        own_limit=0.05,
        exact=True,
        random=False,
        degenerate_solutions=degenerate_solutions,
        unmeasured=0,
        operations=3,
        cases=2,
        input_shift=0.3,
        stream=0.0,
        eager_ns=2e6,
        floor_ns=1e6,
    )
    return Audit(
        problem=name, target="cuda", device="H200", figures=figures, findings=findings(figures, "cuda"), seconds=2.0
    )


def text(drawn: RenderableType) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get()


def test_one_task() -> None:
    shown = text(audit_table(audit("p[1]", ZEROS, CUT)))
    assert "p[1] on H200: void" in shown and "zeros are accepted as the result; not so on the judge's own" in shown
    assert "the least accepted: 0.25 of the allowance" in shown and "eager 2.00 ms, floor 1.00 ms" in shown
    rows = text(degenerate_table((ZEROS, CUT)))
    assert "linear[0]" in rows and "∞" in rows


def test_the_object_is_json_and_names_its_verdict() -> None:
    found = json.loads(json.dumps(audit_object(audit("p", ZEROS))))
    assert (found["problem"], found["verdict"]) == ("p", "void")
    assert found["findings"][0]["mended"] is True and found["figures"]["degenerate_solutions"][0]["share"] == 0.25


def test_many() -> None:
    allow_tf32 = DegenerateSolution(kind="zeros", name="", share=50.0, norm=1.0, allow_tf32=5e-3)
    tasks: list[dict[str, Any]] = [
        audit_object(a) for a in (audit("a", ZEROS), audit("b", allow_tf32), audit("c", CUT))
    ]
    tasks.append({"problem": "d", "status": "failed", "verdict": {"reason": "hung", "summary": "no result"}})
    total = audits_summary(tasks)
    counts = {k: total[k] for k in ("tasks", "void", "mended", "weak", "sound", "failed", "inside_tolerance")}
    assert counts == {
        "tasks": 4, "void": 1, "mended": 1, "weak": 1, "sound": 1, "failed": 1,
        "inside_tolerance": {"0.0001": 1, "0.01": 2},
    }  # fmt: skip
    assert total["reasons"] == {"void": {"constant": 1}, "weak": {"inside_tolerance": 1}, "note": {}}
    assert total["failures"] == [{"problem": "d", "reason": "hung", "summary": "no result"}]
    shown = text(audits_table(tasks))
    assert "hung: no result" in shown and "4 tasks: 1 void (1 of them" in shown and "accepts: zeros" in shown
