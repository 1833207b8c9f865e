"""One machine asks, another judges; two folders are copied back and forth, as with a stick, and each half is killed on
its way: the run ends as if nothing had been."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

from fakes.facts import MACHINE, PROBLEM, context, pattern, timed
from tilewright.edges.bundle import Bundle
from tilewright.edges.ledger import Ledger
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.dialogue import ModelChoice, Prompt, Reply
from tilewright.facts.errors import HarnessError, Pending, UserError
from tilewright.facts.machine import Machine
from tilewright.facts.move import Ask, Event, Inspect, Move, Outcome, Stop, Try, Verify
from tilewright.facts.order import Order
from tilewright.facts.outcome import Failure, Interval, Station, Timed
from tilewright.facts.problem import Target
from tilewright.facts.run import Limits, Request, SearchContext, Timing
from tilewright.facts.verdict import Verified
from tilewright.run.optimize import ModelAccess, new_run, optimize, resume, write_candidate
from tilewright.run.places import Places, Say
from tilewright.run.remote import Remote
from tilewright.run.session import Session, Terms
from tilewright.run.worker import Visit, Worker

WRONG = Failure(stage="check", reason="wrong_values", summary="output 0")
REPLIES = [
    f"IDEA: {name}\nFILE: model.py\n```python\nclass ModelNew: '{name}'\n```\n" for name in ("bad", "a", "b", "c")
]
RATIO = {"a": 1.5, "b": 3.0, "c": 2.0}
QUICK = ModelAccess(keys=lambda names: None, wait=False)


class Judging:
    """A evaluator that judges by what a candidate says of itself. `opened` and `seen` are over all of them."""

    opened: list[Request] = []  # noqa: RUF012  emptied before each test
    seen: list[Move] = []  # noqa: RUF012

    def __init__(self, request: Request, *, places: Places, say: Say, machine: Machine | None) -> None:
        assert machine == MACHINE and Path(request.problem.path).parent == places.out
        self.opened.append(request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def held(self) -> tuple[Station, ...]:
        return (Station(name="timing", seconds=2.5),)

    def start_afresh(self) -> None: ...

    def context(self, request: Request) -> SearchContext:
        assert request.problem.path == ""
        return replace(
            context(pattern("fused_0", points=1)), run=request.run, problem=request.problem, strategy=request.strategy,
            budget_s=1e9, limits=Limits(calls=10**9), model=request.model.name if request.model else "",
            near=(SourceFile(path="near.py", text="a skeleton"),),
        )  # fmt: skip

    def perform(self, context: SearchContext, move: Move) -> Outcome:
        self.seen.append(move)
        assert isinstance(move, Try) and isinstance(move.what, Candidate)
        (said,) = [name for name in ("bad", *RATIO) if f"'{name}'" in move.what.files[0].text]
        if said == "bad":
            return WRONG
        ours = Interval(low=99.0 / RATIO[said], mid=100.0 / RATIO[said], high=101.0 / RATIO[said])
        return replace(timed(RATIO[said], candidate_id=move.what.id), times_ns=(("ours", ours),))


class Pair:
    """The two machines, each with its copy of the bundle."""

    def __init__(self, folder: Path, strategy: str = "best_of_n", bench_of: Any = Judging) -> None:
        self.asking, self.judging = folder / "asking", folder / "judging"
        self.folder, self.strategy, self.bench_of = folder, strategy, bench_of
        folder.mkdir(parents=True, exist_ok=True)
        self.replies = folder.parent / "replies.json"
        self.replies.write_text(json.dumps(REPLIES))
        Judging.opened.clear()
        Judging.seen.clear()

    @property
    def places(self) -> Places:
        return Places(out=self.folder / "run", cache=self.folder / "cache")

    def ask(self, access: ModelAccess = QUICK) -> Stop | None:
        """Begin the run or go on with it; None where it is pending."""
        try:
            with Ledger(self.places.journal) as ledger:
                begun = ledger.request() is not None
            if begun:
                return resume(places=self.places, say=silent, access=access).stop
            shutil.rmtree(self.places.out)
            asked = Request(
                run=new_run(), problem=PROBLEM, strategy=self.strategy, budget_s=100.0, seed=0,
                model=ModelChoice(name=f"scripted:{self.replies}", base_url="http://here:1/v1"),
                evaluator=f"bundle:{self.asking}",
            )  # fmt: skip
            return optimize(asked, places=self.places, say=silent, access=access).stop
        except Pending:
            return None

    def judge(self, say: Say = lambda text: None) -> Visit:
        with self.worker(say) as worker:
            return worker.visit()

    def worker(self, say: Say = lambda text: None) -> Worker:
        def machine_of(target: Target) -> Machine:
            return MACHINE

        cache = self.folder / "cache"
        return Worker(Bundle(self.judging), cache=cache, say=say, bench_of=self.bench_of, machine_of=machine_of)

    def carry(self, kind: str) -> None:
        """Copy `orders` there, or `answers` back."""
        here, there = (self.asking, self.judging) if kind == "orders" else (self.judging, self.asking)
        shutil.copytree(here / kind, there / kind, dirs_exist_ok=True)

    def to_the_try(self) -> list[Order]:
        """The run so far that its first candidate is to be judged; the orders that lie there for it, on both sides."""
        self.ask()
        self.there_and_back()
        self.ask()
        self.carry("orders")
        return orders_in(self.asking)

    def there_and_back(self) -> Visit:
        self.carry("orders")
        visit = self.judge()
        self.carry("answers")
        return visit

    def to_the_end(self, ask: Callable[[], object], judge: Callable[[], object]) -> tuple[Event, ...]:
        for _ in range(9):
            ask()
            if isinstance((events := self.events() or (None,))[-1], Event) and isinstance(events[-1].move, Stop):
                return events
            self.carry("orders")
            judge()
            self.carry("answers")
        raise AssertionError("it does not end")

    def events(self) -> tuple[Event, ...]:
        with Ledger(self.places.journal, readonly=True) as ledger:
            return ledger.events()


@pytest.fixture(autouse=True)
def what_a_kill_leaves_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def silent(text: str) -> None: ...


def outcomes(events: tuple[Event, ...]) -> list[tuple[Move, Outcome]]:
    return [(e.move, e.outcome) for e in events]


def killed_at(line: int, act: Callable[[], object]) -> bool:
    """Do this in a process that is killed (-9) at that line of our code, counted as they are run; whether it was."""
    ours = ("run/remote.py", "run/worker.py", "run/drive.py", "run/optimize.py", "bundle/folder.py", "journal.py")
    left = line

    def lines(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return lines if frame.f_code.co_filename.endswith(ours) else None

    if (child := os.fork()) == 0:
        try:
            sys.settrace(lines)
            act()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_run_goes_over_two_folders_as_it_would_over_none(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "pair")
    events = pair.to_the_end(pair.ask, pair.judge)
    assert [type(e.outcome) for e in events] == [Reply] * 4 + [Failure, Timed, Timed, Timed, type(None)]
    stop = events[-1].move
    assert isinstance(stop, Stop) and isinstance(stop.best, Candidate) and "'b'" in stop.best.files[0].text
    assert "'b'" in (pair.places.candidate / "model.py").read_text()
    assert [r.problem.source for r in Judging.opened] == [PROBLEM.source] * 2  # the tries come together
    assert len(Judging.seen) == 4


def test_what_the_user_asked_for_is_not_the_other_machines_to_say_and_no_place_travels(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "pair")
    pair.to_the_end(pair.ask, pair.judge)
    with Ledger(pair.places.journal, readonly=True) as ledger:
        found = ledger.context()
    assert found is not None
    assert (found.problem, found.budget_s, found.limits.calls) == (PROBLEM, 100.0, None)
    assert found.machine == MACHINE and found.near  # that is
    texts = [file.read_text().replace(f"scripted:{pair.replies}", "") for file in (pair.judging / "orders").iterdir()]
    assert len(texts) == 5
    assert not any(place in text for text in texts for place in (str(tmp_path), "http://here", "toy.py"))


def test_the_other_machines_time_is_booked_and_not_the_ways(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "pair", "oneshot")
    (order,) = pair.to_the_try()
    pair.judge()
    bundle = Bundle(pair.judging)
    answer = bundle.answer(order)
    assert answer is not None
    bundle.reply(order, replace(answer, wall_s=77.5))
    pair.carry("answers")
    pair.ask()
    held = (Station(name="timing", seconds=2.5),)
    assert [(e.wall_s, e.held) for e in pair.events()[1:]] == [(77.5, held), (pytest.approx(0.0, abs=5.0), ())]


def orders_in(folder: Path) -> list[Order]:
    """All, answered or not."""
    bare = folder.with_name("bare")
    shutil.rmtree(bare, ignore_errors=True)
    shutil.copytree(folder / "orders", bare / "orders")
    return list(Bundle(bare).waiting(silent))


def test_killed_in_each_half_at_any_line_the_run_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Every process that is begun is killed at a line of ours, and begun again; the longest runs 525 of them."""
    pair = Pair(tmp_path / "whole", "oneshot")
    whole = outcomes(pair.to_the_end(pair.ask, pair.judge))
    kills = 0

    def begun_twice(act: Callable[[], object], line: int) -> Callable[[], object]:
        def acts() -> None:
            nonlocal kills
            kills += killed_at(line, act)
            act()

        return acts

    for line in range(5, 350, 86):
        other = Pair(tmp_path / str(line), "oneshot")
        assert outcomes(other.to_the_end(begun_twice(other.ask, line), begun_twice(other.judge, line))) == whole, line
    assert kills > 10


class Starting(Judging):
    """With something of the library's to begin with; profiles are refused."""

    def context(self, request: Request) -> SearchContext:
        return replace(super().context(request), start=Candidate(files=(SourceFile(path="model.py", text="'c'"),)))

    def perform(self, context: SearchContext, move: Move) -> Outcome:
        if isinstance(move, Verify):
            return Verified(verdicts=())
        judged = super().perform(context, move) if isinstance(move, Try) else WRONG
        return replace(judged, floor_ns=1.0) if isinstance(judged, Timed) else judged


def test_a_visit_goes_on_until_a_model_is_wanted_and_comes_to_the_same(tmp_path: Path) -> None:
    """Of a generation: its start is judged and profiled as soon as the problem is open; four proposals are verified and
    judged in one visit, and the best of them is profiled."""
    kinds = [Try, Inspect, *[Ask] * 4, *[Verify] * 4, *[Try] * 4, Inspect]
    journals, visits = [], []
    for name, ahead in (("slow", False), ("quick", True)):
        pair = Pair(tmp_path / name, "evolve", Starting)
        visits.append(0)
        for _ in range(9):
            with contextlib.suppress(UserError):  # the script ends with the generation
                pair.ask()
            if len(pair.events()) == len(kinds):
                break
            pair.carry("orders")
            with pair.worker() as worker:
                worker._visit(ahead=ahead)
            pair.carry("answers")
            visits[-1] += 1
        journals.append(pair.events())
    assert [type(e.move) for e in journals[1]] == kinds
    assert outcomes(journals[0]) == outcomes(journals[1])
    assert [e.held for e in journals[0]] == [e.held for e in journals[1]]
    assert visits == [6, 2]


def test_what_was_done_ahead_counts_only_where_it_is_wanted(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "pair", "cutegen", Starting)
    pair.ask()
    pair.there_and_back()
    (opening,) = orders_in(pair.asking)
    answer = Bundle(pair.asking).answer(opening)
    assert answer is not None and [type(e.move) for e in answer.ahead] == [Try]
    other = replace(answer.ahead[0], move=Try(what=Candidate(files=()), why="of another version"))
    Bundle(pair.asking).reply(opening, replace(answer, ahead=(other,)))
    pair.ask()
    assert pair.events() == ()
    assert [order.job and order.job.move for order in orders_in(pair.asking)] == [answer.ahead[0].move]


class Lossy(Pair):
    """A file that is sent for the first time is lost, or half of it."""

    sent: frozenset[str] = frozenset()

    def carry(self, kind: str) -> None:
        here, there = (self.asking, self.judging) if kind == "orders" else (self.judging, self.asking)
        (there / kind).mkdir(parents=True, exist_ok=True)
        for file in sorted((here / kind).glob("*")):
            text = file.read_bytes()
            if file.name in self.sent or len(self.sent) % 2:
                (there / kind / file.name).write_bytes(text if file.name in self.sent else text[: len(text) // 2])
            self.sent |= {file.name}


def test_what_is_lost_on_the_way_is_sent_again_and_nothing_is_judged_twice(tmp_path: Path) -> None:
    pair = Lossy(tmp_path / "pair", "oneshot")
    events = pair.to_the_end(pair.ask, pair.judge)
    assert [type(e.outcome) for e in events] == [Reply, Failure, type(None)]
    assert len(pair.sent) == 4 and len(Judging.seen) == 1


def test_answers_that_nobody_waits_for_are_ignored_and_taken_ones_withdrawn(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "pair")
    pair.to_the_end(pair.ask, pair.judge)
    assert [f.name for f in pair.asking.rglob("*") if f.is_file()] == []
    again = Pair(tmp_path / "again")
    shutil.copytree(pair.judging, again.judging)  # of a run of the same problem
    shutil.copytree(pair.judging, again.asking)
    assert len(again.to_the_end(again.ask, again.judge)) == 9
    assert len(Judging.seen) == 4


def test_one_judge_serves_all_runs_of_a_problem(tmp_path: Path) -> None:
    first, second = Pair(tmp_path / "1", "oneshot"), Pair(tmp_path / "2", "oneshot")
    second.asking = first.asking
    visits = []
    for _ in range(3):
        first.ask()
        second.ask()
        visits.append(first.there_and_back())
    assert [visit.answered for visit in visits] == [2, 2, 0]
    assert len(Judging.opened) == 2  # one at each visit
    assert first.events()[-1].move == second.events()[-1].move


def test_the_judge_stays_open_for_whoever_watches(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "pair", "oneshot")
    with pair.worker() as worker:
        pair.to_the_end(pair.ask, worker.visit)
    assert len(Judging.opened) == 1


def test_a_run_stays_with_the_machine_that_it_began_on(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "pair", "oneshot")
    pair.to_the_try()
    other = replace(MACHINE, driver="other")
    said: list[str] = []
    worker = Worker(Bundle(pair.judging), cache=tmp_path, say=said.append, bench_of=Judging, machine_of=lambda t: other)
    with worker:
        assert [worker.visit() for _ in range(2)] == [Visit(answered=0, faults=0, left=1)] * 2
    assert len(said) == 1 and "left: its run began on test (driver -, torch 0, -)" in said[0]


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (UserError("no CUDA device here"), UserError, "opening the problem, on the other machine: no CUDA device here"),
        (HarnessError("the reference's cell failed"), HarnessError, "the reference's cell failed"),
        (ZeroDivisionError("by nought"), HarnessError, "ZeroDivisionError: by nought"),
    ],
)
def test_a_fault_there_is_told_here_and_asked_once_more(
    tmp_path: Path, error: Exception, raised: type[Exception], said: str
) -> None:
    broken = True

    class Breaks(Judging):
        def context(self, request: Request) -> SearchContext:
            if broken:
                raise error
            return super().context(request)

    pair = Pair(tmp_path / "pair", "oneshot", Breaks)
    pair.ask()
    assert pair.there_and_back() == Visit(answered=1, faults=raised is HarnessError, left=0)
    with pytest.raises(raised, match=said):
        pair.ask()
    assert pair.ask() is None  # it waits for the second attempt
    broken = False
    events = pair.to_the_end(pair.ask, pair.judge)
    assert isinstance(events[-1].move, Stop)


def test_an_answer_that_fits_no_such_move_is_not_taken(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "pair", "oneshot")
    (asked,) = pair.to_the_try()
    pair.judge()
    whole = Bundle(pair.judging).answer(asked)
    assert whole is not None
    for wrong, said in (
        (replace(whole, what=context()), "is a SearchContext, for a Try"),
        (replace(whole, machine="another"), "comes from another machine"),
    ):
        Bundle(pair.asking).reply(asked, wrong)
        with pytest.raises(HarnessError, match=said):
            pair.ask()
    assert len(pair.events()) == 1


def test_moves_that_are_made_together_lie_there_together(tmp_path: Path) -> None:
    request = Request(
        run="0123456789ab", problem=PROBLEM, strategy="s", seed=0, budget_s=1.0, evaluator=f"bundle:{tmp_path}/box"
    )
    tries = tuple(Try(what=Candidate(files=()), why=str(n)) for n in range(3))
    ask = Ask(prompt=Prompt(system="", messages=()), model="m", turn=0, why="")
    Remote(request, made=lambda: 4, wait=False, say=silent).announce(context(), (ask, *tries))
    first = Bundle(tmp_path / "box").place_of_answer(orders_in(tmp_path / "box")[0])
    with pytest.raises(Pending, match=rf"^try waits for {first}$"):
        Remote(request, made=lambda: 5, wait=False, say=silent).perform(context(), tries[0])
    first.parent.mkdir()
    first.write_text("tilewri")
    with pytest.raises(Pending, match="which is not whole yet"):
        Remote(request, made=lambda: 5, wait=False, say=silent).perform(context(), tries[0])
    assert [(o.number, o.job.move) for o in orders_in(tmp_path / "box") if o.job] == list(enumerate(tries, start=5))


def test_waiting_goes_on_until_the_answer_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path / "pair")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        pair.there_and_back()

    monkeypatch.setattr(Remote.__init__, "__kwdefaults__", {"events": tuple, "sleep": sleep})
    stop = pair.ask(replace(QUICK, wait=True))
    assert stop is not None and len(slept) == 2  # for the context, and for the judgements, which are asked for together


class Cut(BaseException):
    """The end of a process, in the place of SIGKILL."""


def test_an_agents_run_goes_over_two_folders_and_outlives_a_kill_in_each_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[str] = []

    class Dying(Judging):
        """The judging half is killed in its first judgement."""

        def perform(self, context: SearchContext, move: Move) -> Outcome:
            if not kills:
                kills.append("judging")
                raise Cut
            return super().perform(context, move)

    pair = Pair(tmp_path / "pair", bench_of=Dying)

    def sleep(seconds: float) -> None:
        """While the agent's server waits: a visit there. It is killed itself once, as soon as an answer lies here."""
        with contextlib.suppress(Cut):
            pair.there_and_back()
        if kills == ["judging"] and len(list((pair.asking / "answers").iterdir())) == 2:
            kills.append("asking")
            raise Cut

    monkeypatch.setattr(Remote.__init__, "__kwdefaults__", {"events": tuple, "sleep": sleep})
    terms = Terms(budget_s=1e6, limits=Limits(), timing=Timing(), evaluator=f"bundle:{pair.asking}")

    def opened() -> Session:
        return Session(PROBLEM, terms, places=pair.places, agent="coder", say=silent)

    def written(name: str) -> Candidate:
        return Candidate(files=(SourceFile(path="model.py", text=f"class ModelNew: '{name}'"),))

    session = opened()
    assert (session.context.machine, session.context.near) == (
        MACHINE,
        (SourceFile(path="near.py", text="a skeleton"),),
    )
    with pytest.raises(Cut):
        session.submit(written("a"), "first")
    session.close()
    assert kills == ["judging", "asking"]
    session = opened()
    assert isinstance(session.submit(written("a"), "first, again").outcome, Timed)
    assert session.submit(written("bad"), "too clever").outcome == WRONG
    best = session.submit(written("b"), "better")
    assert isinstance(best.outcome, Timed) and best.held == (Station(name="timing", seconds=2.5),)
    finished = session.finish("enough")
    assert finished.stop.best == written("b") and finished.candidate_dir is not None
    assert "'b'" in (finished.candidate_dir / "model.py").read_text()
    session.close()
    assert not [file for file in pair.asking.rglob("*") if file.is_file()]  # all is withdrawn


def test_a_candidate_from_there_is_written_nowhere_but_in_its_folder(tmp_path: Path) -> None:
    strange = Candidate(files=(SourceFile(path="model.py", text="1"), SourceFile(path="../../x.py", text="2")))
    with pytest.raises(HarnessError, match="does not lie in the candidate's folder"):
        write_candidate(strange, tmp_path / "run" / "candidate")
    assert not (tmp_path / "x.py").exists()
