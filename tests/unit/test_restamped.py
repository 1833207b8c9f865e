"""benchmarks/restamped.py: which winners of older skeletons still hold."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "restamped.py"
spec = importlib.util.spec_from_file_location("restamped", SCRIPT)
assert spec is not None and spec.loader is not None
restamped = importlib.util.module_from_spec(spec)
spec.loader.exec_module(restamped)


def told(measured: str, **kernels: str) -> dict[str, Any]:
    return {"measured": list(measured), "kernels": kernels}


def test_a_winner_holds_where_all_that_was_measured_is_what_would_be_measured_today() -> None:
    then = told("ab", a="code 1", b="code 2", c="code 3")
    assert restamped.why_not(["a", "b"], then, told("ab", a="code 1", b="code 2")) == ""
    assert restamped.why_not(["a"], then, told("ab", a="code 1", b="other")) == "", (
        "b was not measured: a hint sufficed"
    )
    changed = restamped.why_not(["a", "b"], then, told("ab", a="code 1", b="other"))
    assert changed == "1 of 2 measured points are other kernels now"
    fresh = restamped.why_not(["a", "b"], then, told("abd", a="code 1", b="code 2", d="code 4"))
    assert fresh == "1 points that would be measured today were not there"
    again = told("abd", a="code 1", b="code 2", d="code 2")
    assert restamped.why_not(["a", "b"], then, again) == "", "a new point that is a kernel which was measured"
