"""The judging process's own work: one judge stays open for a problem, faults are told by whose they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from fakes.runs import context as context_of
from fakes.runs import timed
from tilewright.faces.serving.judging import KeptJudge, serve_orders
from tilewright.facts import codec
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import HarnessError, Lack, TooBusy, UserError
from tilewright.facts.machine import Machine
from tilewright.facts.move import Move, Outcome, Sanitize, Try
from tilewright.facts.outcome import Failure, Sanitized, Station
from tilewright.facts.run import Request, SearchContext, Timing
from tilewright.facts.ticket import JudgingOrder, JudgingProgress, JudgingTerms, Submission, TicketFault, TicketVerdict
from tilewright.run.places import Places, Say

PROBLEM = "class Model: ...\n\n\ndef get_inputs(): ...\n\n\ndef get_init_inputs(): ...\n"
ERRORS: dict[str, Callable[[], Exception]] = {
    "user": lambda: UserError("it raises"), "lack": lambda: Lack.of("nvcc", "not found", "install it"),
    "busy": lambda: TooBusy("others"), "harness": lambda: HarnessError("ours"), "bug": lambda: KeyError("x"),
}  # fmt: skip


class StandInBench:
    """What comes of a candidate is what its text says."""

    opened: list[Request] = []  # noqa: RUF012  by all, until a test begins
    closed = 0

    def __init__(self, request: Request, *, places: Places, say: Say, machine: Machine | None) -> None:
        self.request = request

    def __enter__(self) -> Self:
        StandInBench.opened.append(self.request)
        return self

    def __exit__(self, *_: object) -> None:
        StandInBench.closed += 1

    def context(self, request: Request) -> SearchContext:
        return context_of(request.problem.name, problem=request.problem, strategy="given")

    def perform(self, context: SearchContext, move: Move) -> Outcome:
        assert isinstance(move, Try | Sanitize) and isinstance(move.what, Candidate)
        word = move.what.files[0].text
        if word in ERRORS:
            raise ERRORS[word]()
        if isinstance(move, Sanitize):
            return Sanitized(clean=("memcheck",)) if word == "clean" else Failure(
                stage="check", reason="sanitizer", summary="reads outside"
            )  # fmt: skip
        if word == "wrong":
            return Failure(stage="check", reason="wrong_values", summary="far off", excerpt="x" * 10)
        return timed()

    def held(self) -> tuple[Station, ...]:
        return ()

    def start_afresh(self) -> None: ...


@pytest.fixture
def kept() -> Iterator[KeptJudge]:
    StandInBench.opened, StandInBench.closed = [], 0
    terms = JudgingTerms(target="cpu", timing=Timing(budget_s=1.0), seed=3, cache="cache", environment=(("A", "1"),))
    judge = KeptJudge(terms, say=lambda text: None, bench_of=StandInBench)
    yield judge
    judge.close()
    assert StandInBench.closed == len(StandInBench.opened)


def order(word: str, *, path: str = "", source: str = PROBLEM, **changes: Any) -> JudgingOrder:
    candidate = Candidate(files=(SourceFile(path="model.py", text=word),))
    made = Submission(problem="mine", source="" if path else source, version="", candidate=candidate, **changes)
    return JudgingOrder(path=path, submission=made)


def test_a_verdict_has_the_words_of_a_report(kept: KeptJudge) -> None:
    right, wrong = kept.judge(order("right")), kept.judge(order("wrong"))
    assert isinstance(right, TicketVerdict) and isinstance(wrong, TicketVerdict)
    assert (right.accepted, dict(right.lows)["eager"], right.claimed) == (
        True,
        pytest.approx(1.287),
        ("eager", "compile"),
    )
    shown = json.loads(right.shown)
    assert shown["candidate_id"] == order("right").submission.candidate.id != json.loads(wrong.shown)["candidate_id"]
    assert shown["verdict"]["reason"] == "faster" and shown["ratio"]["eager"]["mid"] == 1.3
    assert shown["error_used"] == pytest.approx(0.75), "3e-7 of 4e-7"
    assert (wrong.accepted, wrong.lows) == (False, ())
    told = json.loads(wrong.shown)["verdict"]
    assert (told["stage"], told["reason"], told["summary"], told["excerpt"]) == (
        "check", "wrong_values", "far off", "x" * 10,
    )  # fmt: skip


def test_one_judge_stays_open_for_one_problem(kept: KeptJudge, tmp_path: Path) -> None:
    for word in ("right", "wrong", "right"):
        kept.judge(order(word))
    assert len(StandInBench.opened) == 1 and StandInBench.opened[0].problem.environment == (("A", "1"),)
    kept.judge(order("right", precision="bf16"))
    kept.judge(order("right", precision="bf16", source=PROBLEM + "\n"))
    assert (len(StandInBench.opened), StandInBench.closed) == (3, 2)
    path = tmp_path / "named.py"
    path.write_text(PROBLEM)
    kept.judge(order("right", path=str(path)))
    kept.judge(order("right", path=str(path)))
    assert (len(StandInBench.opened), StandInBench.opened[-1].problem.path) == (4, str(path))
    path.write_text(PROBLEM + "# changed\n")
    kept.judge(order("right", path=str(path)))
    assert len(StandInBench.opened) == 5 and StandInBench.opened[-1].problem.source.endswith("# changed\n")


@pytest.mark.parametrize(
    ("word", "whose"),
    [("user", "problem"), ("lack", "machine"), ("busy", "machine"), ("harness", "project"), ("bug", "project")],
)
def test_a_fault_is_told_by_whose_it_is_and_the_next_begins_afresh(
    kept: KeptJudge, word: str, whose: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = kept.judge(order(word))
    assert isinstance(found, TicketFault) and found.whose == whose
    assert isinstance(kept.judge(order("right")), TicketVerdict)
    assert len(StandInBench.opened) == 2


def test_a_problem_that_is_none_is_the_problems_fault_without_our_places(kept: KeptJudge) -> None:
    found = kept.judge(order("right", source="def nothing(: "))
    assert isinstance(found, TicketFault) and found.whose == "problem"
    assert found.text.startswith("mine.py: not Python") and StandInBench.opened == []


@pytest.mark.parametrize(("word", "accepted"), [("clean", True), ("right", False)])
def test_what_is_accepted_goes_under_the_sanitizer_where_that_is_asked_for(word: str, accepted: bool) -> None:
    terms = JudgingTerms(target="cpu", timing=Timing(), seed=0, cache="cache", sanitize=True)
    kept = KeptJudge(terms, say=lambda text: None, bench_of=StandInBench)
    found = kept.judge(order(word))
    kept.close()
    assert isinstance(found, TicketVerdict) and found.accepted is accepted
    reason = json.loads(found.shown)["verdict"]["reason"]
    assert reason == ("faster" if accepted else "sanitizer")


def test_orders_come_and_answers_go_as_lines() -> None:
    terms = JudgingTerms(target="cpu", timing=Timing(), seed=0, cache="cache")
    lines = iter([codec.dumps(terms), codec.dumps(order("right")), codec.dumps(order("wrong")), ""])
    said: list[str] = []
    serve_orders(lambda: next(lines), said.append, bench_of=StandInBench)
    found = [codec.read(line, TicketVerdict | JudgingProgress) for line in said]  # type: ignore[arg-type,var-annotated]
    assert [type(f).__name__ for f in found] == ["JudgingProgress", "TicketVerdict"] * 2
    assert all("\n" not in line for line in said)
