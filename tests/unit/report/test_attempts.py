"""What a coding agent is told: verdicts in the words of `evaluate --json`, profiles, sweeps; its run in the report."""

from __future__ import annotations

from dataclasses import replace

from fakes.runs import RECIPE, REFUSAL, TUNE, TUNED, context, events, timed
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.move import Await, Inspect, Stop, Try
from tilewright.facts.outcome import Inspected, Launches, NamedTime
from tilewright.facts.run import AGENT
from tilewright.report import attempt_object, attempt_row, html, markdown, profile_object, summary, sweep_object

MINE = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: ...\n"),))
AGENTS = replace(context(), strategy=AGENT)
SEEN = Inspected(
    longest=(NamedTime(name="k" * 300, origin="own", times=2, ns=30e3), NamedTime(name="aten::mul", origin="torch",
             times=1, ns=10e3)), kinds=3, ns=50e3, launches=Launches(count=4, cost_ns=2e3),
)  # fmt: skip


def test_an_accepted_attempt_is_told_as_evaluate_tells_it() -> None:
    (event,) = events((Try(what=MINE, why="wider tiles"), timed(1.3)))
    told = attempt_object(AGENTS, event, number=4)
    whole = summary(AGENTS, (event, *events((Stop(best=MINE, why=""), None))), candidate_dir="")
    assert (told["attempt"], told["idea"], told["state"]) == (4, "wider tiles", "accepted")
    assert told["verdict"]["reason"] == "faster" and told["ratio"]["eager"]["mid"] == 1.3
    assert told["floor_share"] == whole["floor_share"] and told["error"] == whole["error"]
    assert "machine" not in told and None not in told["ratio"].values()
    assert attempt_row(event, number=4) == {
        "attempt": 4, "idea": "wider tiles", "seconds": 1.5, "state": "accepted", "faster": True, "ratio_eager": 1.3,
        "time_ns": 200e3,
    }  # fmt: skip


def test_what_is_right_and_no_faster_is_accepted_and_said_to_be() -> None:
    (event,) = events((Try(what=MINE, why="the same"), timed(1.005)))
    told = attempt_object(AGENTS, event, number=1)
    assert (told["state"], told["verdict"]["reason"]) == ("accepted", "not_faster")
    assert not attempt_row(event, number=1)["faster"]


def test_a_refusal_says_where_why_and_what_was_printed() -> None:
    (event,) = events((Try(what=MINE, why="oh"), REFUSAL))
    told = attempt_object(AGENTS, event, number=2)
    assert told == {
        "attempt": 2, "idea": "oh", "state": "refused",
        "verdict": {"accepted": False, "stage": "check", "reason": "wrong_values",
                    "summary": "output 0 is off by 3.0", "excerpt": "Traceback\n  <boom>\n"},
    }  # fmt: skip
    assert attempt_row(event, number=2)["reason"] == "wrong_values"


def test_profiles_and_sweeps_as_json() -> None:
    found = profile_object(SEEN)
    assert [(n["share"], len(n["name"])) for n in found["longest"]] == [(0.6, 200), (0.2, 9)]
    assert (found["ns"], found["kinds"], found["launches"]) == (50e3, 3, {"count": 4, "cost_ns": 2e3})
    (event,) = events((TUNE, TUNED))
    swept = sweep_object(event)
    assert swept["points"][0] == {"point": {"threads": 256}, "ns": 200e3}
    assert swept["points"][2] == {"point": {"threads": 64}, "failure": "does not compile"}
    (failed,) = events((TUNE, REFUSAL))
    assert sweep_object(failed) == {"pattern": "fused_0", "points": [], "failure": "output 0 is off by 3.0"}


def test_the_report_tells_what_the_agent_did_and_how_long_it_thought() -> None:
    run = events(
        (Await(agent="coder 1.0"), None), (Inspect(what=None), SEEN), (Await(agent="coder 1.0"), None),
        (Try(what=RECIPE, why="the library's"), timed()), (Inspect(what=MINE), SEEN),
        (Stop(best=RECIPE, why="enough; 1.30x"), None),
    )  # fmt: skip
    page = markdown(AGENTS, run)
    assert "profile the module as it is" in page and f"profile candidate {MINE.id}" in page
    assert "profiled: 50.0 µs in 3 names" in page and "wait for" not in page
    assert "coder 1.0, 3 s of its own time" in page
    assert "coder 1.0" in html(AGENTS, run) and ">profiled<" in html(AGENTS, run)


def test_an_unfinished_run_says_who_can_go_on_with_it() -> None:
    (event,) = events((Try(what=MINE, why="oh"), REFUSAL))
    verdict = summary(AGENTS, (event,), candidate_dir="")["verdict"]
    assert "through `tilewright mcp`" in verdict["summary"] and verdict["reason"] == "unfinished"
