"""The judging process of the served judge: reads orders on stdin, says progress and outcomes on stdout, a line each.

The judge of the last problem stays open until another is wanted."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...edges.problems import read_problem
from ...facts import codec
from ...facts.candidate import Candidate
from ...facts.errors import HarnessError, Lack, SickDevice, TooBusy, UserError
from ...facts.move import Event, Stop, Try
from ...facts.outcome import Timed
from ...facts.problem import Problem
from ...facts.run import GIVEN, Request, SearchContext
from ...facts.ticket import JudgingOrder, JudgingProgress, JudgingTerms, TicketFault, TicketVerdict
from ...report import verdict_object
from ...run.evaluator import Evaluator
from ...run.optimize import new_run, progress
from ...run.places import Bench, BenchOf, Places, Say
from ...search.strategies import given
from ..exits import exit_code, leave, obey_signals, open_standards

_LONGEST = 2000  # characters of a fault's text
_BASELINES = ("eager", "compile")


class KeptJudge:
    """Judges candidates, of many problems in turn. `bench_of`: what carries out moves, or a fake one."""

    def __init__(self, terms: JudgingTerms, *, say: Say, bench_of: BenchOf = Evaluator) -> None:
        self._terms, self._say, self._bench_of = terms, say, bench_of
        self._open = ExitStack()
        self._at_hand: tuple[Problem, Bench, SearchContext] | None = None
        self._folder = self._about = ""  # of a problem whose text was sent

    def judge(self, order: JudgingOrder) -> TicketVerdict | TicketFault:
        """What the judge says of the candidate, or why it says nothing."""
        try:
            bench, context = self._opened(order)
            candidate = order.submission.candidate
            return _judged(context, self._events(bench, context, candidate), candidate)
        except (Lack, TooBusy, SickDevice) as error:
            return self._fault("machine", error)
        except UserError as error:
            return self._fault("problem", error)
        except HarnessError as error:
            return self._fault("project", error)
        except Exception as error:  # whatever one order does to us, the others are judged
            traceback.print_exception(error)
            return self._fault("project", error)

    def close(self) -> None:
        """End the open judge. Safe to call twice."""
        self._at_hand, self._folder, self._about = None, "", ""
        self._open.close()

    def _opened(self, order: JudgingOrder) -> tuple[Bench, SearchContext]:
        submission = order.submission
        if order.path:  # whatever the file says now
            problem = self._read(Path(order.path), order)
            if self._at_hand is None or self._at_hand[0] != problem:
                self.close()
                self._at_hand = (problem, *self._bench(problem))
        elif self._at_hand is None or self._about != submission.about:
            self.close()
            self._folder = self._open.enter_context(self._own_folder())
            path = Path(self._folder, f"{submission.problem}.py")
            path.write_text(submission.source, encoding="utf-8")
            problem = self._read(path, order)
            self._at_hand, self._about = (problem, *self._bench(problem)), submission.about
        assert self._at_hand is not None
        return self._at_hand[1], self._at_hand[2]

    def _read(self, path: Path, order: JudgingOrder) -> Problem:
        submission = order.submission
        read = read_problem(path, target=self._terms.target, precision=submission.precision, mode=submission.mode)
        return replace(read, environment=self._terms.environment)

    def _bench(self, problem: Problem) -> tuple[Bench, SearchContext]:
        out = self._open.enter_context(self._own_folder())
        request = Request(
            run=new_run(), problem=problem, strategy=GIVEN, seed=self._terms.seed, budget_s=0.0,
            timing=self._terms.timing,
        )  # fmt: skip
        places = Places(out=Path(out), cache=Path(self._terms.cache))
        bench = self._open.enter_context(self._bench_of(request, places=places, say=self._say, machine=None))
        return bench, bench.context(request)

    def _own_folder(self) -> TemporaryDirectory[str]:
        return TemporaryDirectory(prefix="tilewright-serve-", dir=self._terms.folder or None)

    def _events(self, bench: Bench, context: SearchContext, candidate: Candidate) -> tuple[Event, ...]:
        steps = given(candidate, sanitize=self._terms.sanitize)
        events: list[Event] = []
        move = next(steps)
        while not isinstance(move, Stop):
            assert not isinstance(move, tuple)
            began_s = time.monotonic()
            outcome = bench.perform(context, move)
            event = Event(seq=len(events), move=move, outcome=outcome, wall_s=time.monotonic() - began_s)
            events.append(event)
            self._say(progress(event))
            move = steps.send(event)
        return (*events, Event(seq=len(events), move=move, outcome=None, wall_s=0.0))

    def _fault(self, whose: Any, error: Exception) -> TicketFault:
        """The next order begins afresh. The text names no place of this machine's that was made for the problem."""
        text = str(error) or type(error).__name__
        text = text.replace(f"{self._folder}/", "") if self._folder else text
        self.close()
        return TicketFault(whose=whose, text=" ".join(text.split())[:_LONGEST])


def _judged(context: SearchContext, events: tuple[Event, ...], candidate: Candidate) -> TicketVerdict:
    last = events[-1].move
    assert isinstance(last, Stop)
    timed = next((e.outcome for e in events if isinstance(e.move, Try) and isinstance(e.outcome, Timed)), None)
    shown: dict[str, Any] = {"candidate_id": candidate.id, **verdict_object(context, events)}
    shown["seconds"] = sum(event.wall_s for event in events)
    worst = timed.checked.worst_error if timed is not None and last.best is not None else None
    if worst is not None:
        shown["error_used"] = worst.share
    if timed is None or last.best is None:
        return TicketVerdict(accepted=False, lows=(), claimed=(), shown=_text(shown))
    ratios = [(name, ratio) for name in _BASELINES if (ratio := timed.ratio(name)) is not None]
    return TicketVerdict(
        accepted=True, lows=tuple((name, ratio.low) for name, ratio in ratios),
        claimed=tuple(name for name, _ in ratios if timed.faster_than(name)), shown=_text(shown),
    )  # fmt: skip


def _text(shown: dict[str, Any]) -> str:
    """As JSON, which has no infinite numbers: null."""
    return json.dumps(json.loads(json.dumps(shown), parse_constant=lambda name: None))


def serve_orders(read: Callable[[], str], write: Callable[[str], None], *, bench_of: BenchOf = Evaluator) -> None:
    """Answer each line that `read` gives, until it gives "": the first holds the terms, the others an order each."""
    terms = codec.read(read(), JudgingTerms)
    kept = KeptJudge(terms, say=lambda text: write(codec.dumps(JudgingProgress(text=text))), bench_of=bench_of)
    try:
        while line := read():
            write(codec.dumps(kept.judge(codec.read(line, JudgingOrder))))
    finally:
        kept.close()


def main() -> None:
    """Nothing else that runs in this process writes to the pipe: what prints, prints on stderr."""
    open_standards()
    obey_signals()
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="surrogateescape") as out:
        os.dup2(2, 1)

        def write(line: str) -> None:
            out.write(f"{line}\n")
            out.flush()

        code = exit_code(lambda: serve_orders(sys.stdin.readline, write))
    leave(code)


if __name__ == "__main__":
    main()
