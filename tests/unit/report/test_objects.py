"""The JSON objects: every field that the command line promises, and means that count what failed as 1.0."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.runs import IMPROVED, NOTHING, REFUSED, SLOWER, context, near, timed
from tilewright.facts.move import Event, Try
from tilewright.facts.outcome import Phase, Station
from tilewright.report import bench_summary, summary
from tilewright.report.objects import ratio_of
from tilewright.report.story import story


def task(run: tuple[Event, ...], name: str = "p") -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(json.dumps(summary(context(name), run, candidate_dir="out/candidate")))
    return whole


def measured(eager: float, compiled: float | None = None, **more: Any) -> dict[str, Any]:
    def near(mid: float) -> dict[str, float]:
        return {"low": mid * 0.99, "mid": mid, "high": mid * 1.01}

    ratio = {"eager": near(eager), "compile": near(compiled) if compiled else None}
    status = "improved" if eager > 1.01 else "no_improvement"
    return {"status": status, "verdict": {"accepted": True}, "ratio": ratio, "floor_share": 0.5} | more


def test_every_promised_field_of_an_improved_run() -> None:
    found = task(IMPROVED)
    assert (found["run"], found["problem"], found["target"], found["status"]) == ("r42", "p", "cuda", "improved")
    assert found["verdict"]["accepted"] is True
    assert found["error"] == {
        "norm": 3e-7, "worst": pytest.approx(9e-7), "allowed_norm": 4e-7, "allowed_worst": 2e-6,
        "case": 0, "family": "wide exponents", "output": 0,
    }  # fmt: skip
    assert found["times_ns"]["ours"] == {"low": 198e3, "mid": 200e3, "high": 202e3}
    assert found["times_ns"]["eager"]["mid"] == 260e3 and found["times_ns"]["compile"]["mid"] == pytest.approx(220e3)
    assert found["ratio"]["eager"]["low"] == pytest.approx(1.287)
    assert (found["floor_ns"], found["floor_share"]) == (150e3, 0.75)
    (pattern,) = found["patterns"]
    assert pattern == {
        "id": "fused_0", "title": "scale -> shift -> silu", "kind": "pointwise", "point": {"threads": 256},
        "nodes": ["scaled", "shifted", "gate", "y"], "chosen": "measured", "points_tried": pattern["points_tried"],
    }  # fmt: skip
    won, lost, failed = pattern["points_tried"]
    assert (won["point"], won["time_ns"]["mid"], lost["time_ns"]["mid"]) == ({"threads": 256}, 200e3, 230e3)
    floor_ns = (2**29 + 2**28) / 4.25e12 * 1e9
    assert won["floor_share"] == pytest.approx(floor_ns / 200e3)
    assert failed == {"point": {"threads": 64}, "time_ns": None, "floor_share": None, "failure": "does not compile"}
    assert found["candidate"] == "out/candidate"
    assert found["fallbacks"] == [{"case": 1, "reason": "data-dependent shape"}]
    assert found["unmatched"] == [{"case": 0, "nodes": ["aten.sort.default: no skeleton"]}]
    assert found["machine"]["device"] == "NVIDIA H200" and found["seconds"] == 6.0


def test_a_run_that_keeps_the_module_tells_the_baselines_and_nothing_of_ours() -> None:
    found = task(SLOWER)
    assert found["status"] == "no_improvement"
    assert found["times_ns"]["ours"] is None and found["times_ns"]["eager"]["mid"] == pytest.approx(201e3)
    assert set(found["ratio"].values()) == {None} and found["times_ns"]["ours_warm"] is None
    assert (found["error"], found["floor_share"], found["patterns"]) == (None, None, [])


def test_a_run_with_nothing_to_tell_still_has_every_field() -> None:
    assert task(NOTHING).keys() == task(REFUSED).keys() == task(IMPROVED).keys()
    assert task(REFUSED)["verdict"]["stage"] == "check" and "boom" in task(REFUSED)["verdict"]["excerpt"]
    assert json.loads(json.dumps(summary(context(), NOTHING, candidate_dir="")))["candidate"] is None


def test_warm_times_and_stations_are_told() -> None:
    stations = (Station(name="build", seconds=1.5), Station(name="case 0", seconds=2.0, parts=(("truth", 1.5),)))
    seen = timed(times_ns=(*timed().times_ns, ("ours_warm", near(150e3))), stations=stations)
    found = task((*IMPROVED[:1], replace(IMPROVED[1], outcome=seen), *IMPROVED[-1:]))
    assert found["times_ns"]["ours_warm"]["mid"] == 150e3 and found["times_ns"]["eager_warm"] is None
    assert found["stations"][1] == {"name": "case 0", "seconds": 2.0, "parts": {"truth": 1.5}}


def test_how_long_the_device_was_held_is_told_by_what_for() -> None:
    def held(**seconds: float) -> tuple[Station, ...]:
        return tuple(Station(name=name, seconds=s) for name, s in seconds.items())

    events = tuple(replace(e, held=held(timing=2.0, checking=1.0) if isinstance(e.move, Try) else ()) for e in IMPROVED)
    known = replace(context(), held=held(describing=0.5))
    tries = sum(isinstance(e.move, Try) for e in IMPROVED)
    found = summary(known, events, candidate_dir="")
    stations = {"describing": 0.5, "timing": 2.0 * tries, "checking": 1.0 * tries}
    assert found["device_seconds"] == {"all": 0.5 + 3.0 * tries, "stations": stations} and tries
    assert story(known, events).held.startswith(f"{0.5 + 3.0 * tries:.1f} s (timing ")
    tasks = [{"device_seconds": {"all": s}, "status": "improved"} for s in (12.0, 50.0, 14.0)]
    assert bench_summary([*tasks, {"status": "failed"}])["device_seconds"] == {"median": 14.0, "most": 50.0}
    assert bench_summary([{"status": "failed"}])["device_seconds"] is None


def test_the_halves_of_a_step_and_memory_are_told() -> None:
    half = Phase(
        name="backward", times_ns=(("ours", near(90e3)), ("eager", near(180e3))), ratios=(("eager", near(2.0)),)
    )
    seen = timed(phases=(half,), peak_bytes=(("ours", 3 << 20), ("eager", 5 << 20)))
    found = task((*IMPROVED[:1], replace(IMPROVED[1], outcome=seen), *IMPROVED[-1:]))
    assert list(found["phases"]) == ["backward"]
    assert found["phases"]["backward"]["times_ns"]["eager"]["mid"] == 180e3
    assert found["phases"]["backward"]["ratio"]["eager"]["mid"] == 2.0
    assert found["peak_bytes"] == {"ours": 3 << 20, "eager": 5 << 20}
    assert task(IMPROVED)["phases"] == {} and task(IMPROVED)["mode"] == "inference"


def test_the_candidates_own_count_of_fallbacks_is_told() -> None:
    counted = replace(timed(), checked=replace(timed().checked, fallbacks=(("other shapes", 3),)))
    run = (*IMPROVED[:1], replace(IMPROVED[1], outcome=counted), *IMPROVED[2:])
    assert {"reason": "other shapes", "calls": 3} in task(run)["fallbacks"]


def test_bench_means_count_failures_and_unchanged_as_one() -> None:
    hung = {
        "problem": "h",
        "status": "failed",
        "verdict": {"reason": "hung", "summary": "s"},
        "ratio": {},
        "times_ns": {},
    }
    total = bench_summary([measured(4.0, 2.0), measured(1.0, 2.0), task(NOTHING), task(REFUSED, "bad"), hung])
    assert (total["tasks"], total["passed"], total["unchanged"], total["failed"]) == (5, 2, 1, 2)
    assert total["geomean_eager"] == pytest.approx(4.0 ** (1 / 5))
    assert total["geomean_best"] == pytest.approx(2.0 ** (1 / 5)), "of the second the better is eager: 1.0"
    assert total["median_eager"] == 1.0 and total["share_won"] == pytest.approx(1 / 5)
    assert total["geomean_floor_share"] == pytest.approx(0.5)
    assert [(f["problem"], f["reason"]) for f in total["failures"]] == [("bad", "wrong_values"), ("h", "hung")]  # type: ignore[attr-defined]


def test_fast_p_counts_what_was_accepted_and_is_so_much_faster() -> None:
    runs = [measured(4.0), measured(1.7), measured(1.1), measured(7.0, status="failed"), task(NOTHING), task(REFUSED)]
    total = bench_summary(runs)
    assert total["fast_p"] == {"0": 3 / 6, "1": 3 / 6, "1.5": 2 / 6, "2": 1 / 6}
    assert bench_summary([])["fast_p"] is None


def test_each_failure_says_whose_fault_it_was() -> None:
    failed = [{"problem": name, "status": "failed", "whose": name} for name in ("machine", "project", "problem")]
    total = bench_summary([*failed, task(REFUSED, "bad")])
    assert [f["whose"] for f in total["failures"]] == ["machine", "project", "problem", "candidate"]  # type: ignore[attr-defined]


def test_what_is_kept_is_eager_and_is_held_against_torch_compile_too() -> None:
    kept = task(SLOWER)
    assert kept["verdict"]["accepted"] and kept["ratio"]["eager"] is None  # type: ignore[index]
    assert kept["tried"]["ratio"]["eager"]["mid"] == pytest.approx(1.005)  # type: ignore[index]
    seen = {"eager": {"mid": 300.0}, "compile": {"mid": 200.0}, "ours": None}
    slow = kept | {"times_ns": seen}
    assert ratio_of(slow, "eager") == 1.0
    assert ratio_of(slow, "best") == pytest.approx(2 / 3)
    assert ratio_of(slow | {"times_ns": seen | {"compile": {"mid": 400.0}}}, "best") == 1.0
    total = bench_summary([slow])
    assert (total["passed"], total["unchanged"]) == (1, 1)


def test_a_failed_task_counts_as_one_whatever_it_claims() -> None:
    assert ratio_of(measured(7.0, status="failed"), "eager") == 1.0
    assert bench_summary([measured(7.0, status="failed")])["geomean_eager"] == 1.0


def test_what_waits_for_a_reply_is_counted_and_changes_no_mean() -> None:
    waiting = {"problem": "p", "status": "pending", "verdict": {"accepted": False}, "ratio": {}}
    total = bench_summary([measured(4.0, 2.0), waiting])
    assert (total["tasks"], total["pending"], total["geomean_eager"], total["share_won"]) == (2, 1, 4.0, 1.0)


def test_an_empty_bench_has_no_means() -> None:
    assert bench_summary([])["geomean_eager"] is None and bench_summary([])["tasks"] == 0


@given(st.lists(st.tuples(st.floats(0.05, 50), st.floats(0.05, 50)), min_size=1, max_size=12))
def test_the_better_baseline_is_never_easier_than_eager(ratios: list[tuple[float, float]]) -> None:
    total = bench_summary([measured(e, c) for e, c in ratios])
    assert total["geomean_best"] <= total["geomean_eager"] + 1e-9  # type: ignore[operator]
    assert total["geomean_eager"] == pytest.approx(math.prod(e for e, _ in ratios) ** (1 / len(ratios)))
