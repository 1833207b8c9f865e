"""The machine that judges for another: takes the orders of a bundle, those of one problem by one judge, and answers."""

from __future__ import annotations

import errno
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NoReturn, Self

from ..edges.bundle import Bundle, name_of
from ..edges.gpu.machine import machine as measured_machine
from ..edges.ledger import Ledger
from ..facts.candidate import Candidate
from ..facts.dialogue import Reply
from ..facts.errors import HarnessError, UserError
from ..facts.machine import Machine
from ..facts.move import Ask, Compose, Event, Move, Outcome, Stop
from ..facts.order import Answer, Fault, Found, Order
from ..facts.outcome import Station
from ..facts.problem import Problem, Target
from ..facts.run import Request, SearchContext, Timing
from ..facts.version import VERSION
from ..search.strategies import STRATEGIES
from .drive import drive
from .evaluator import Evaluator
from .matching import composed
from .places import Bench, BenchOf, Places, Say
from .remote import as_asked

_POLL_S = 1.0

Judged = tuple[Problem, int, Timing]  # what orders share that one judge can carry out


class _ModelWanted(Exception):
    """What comes next is not this machine's to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What became of the orders that lay there: answered, of those with a fault of this machine's; and left."""

    answered: int
    faults: int
    left: int


class Worker:
    """Serves one bundle, alone or beside others: a problem is one worker's at a time. Opened by `with`.
    The judge of the last problem stays open until another is wanted.

    An order is left where its run began on another machine: times could not be compared.

    A visit goes on with each run from its last order, as its strategy would, until a model is wanted: what follows from
    an answer is not worth a journey of its own."""

    def __init__(
        self, bundle: Bundle, *, cache: Path, say: Say, bench_of: BenchOf = Evaluator,
        machine_of: Callable[[Target], Machine] | None = None,
    ) -> None:  # fmt: skip
        self._bundle = bundle
        self._say = say
        self._machine_of = machine_of or (lambda target: measured_machine(target, cache_dir=cache))
        self._machines: dict[Target, Machine] = {}
        self._told: set[str] = set()
        self._bench = _OpenBench(cache=cache, say=say, bench_of=bench_of)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bench.close()

    def visit(self) -> Visit:
        """Answer all that waits, and what follows; each answer is durable before the next order is taken."""
        return self._visit(ahead=True)

    def _visit(self, *, ahead: bool) -> Visit:
        answered = faults = left = 0
        for judged, orders in groupby(self._waiting(), key=lambda order: repr(_judged(order.request))):
            with self._bundle.claimed(judged) as ours:
                for order, last in _with_lasts(orders) if ours else ():
                    if self._answered_already(order):
                        continue
                    answer = self._answer(order)
                    if answer is None:
                        left += 1
                        continue
                    try:
                        self._bundle.reply(order, answer)
                    except OSError as error:
                        if error.errno in (errno.ENOSPC, errno.EDQUOT):
                            raise
                        self._once(f"{name_of(order)}: its answer can't be written ({error}); left")
                        left += 1
                        continue
                    answered += 1
                    fault = answer.what if isinstance(answer.what, Fault) else None
                    faults += fault is not None and fault.whose == "harness"
                    told = f"fault: {fault.text}" if fault else type(answer.what).__name__.lower()
                    self._say(f"{name_of(order)}: {told} ({answer.wall_s:.1f} s)")
                    if ahead and last:
                        _go_ahead(order, answer, bundle=self._bundle, bench=self._bench, say=self._say)
        return Visit(answered=answered, faults=faults, left=left)

    def _answered_already(self, order: Order) -> bool:
        """By another worker, since we looked; or what lies in the answer's place is not ours to replace."""
        try:
            return self._bundle.answer(order) is not None
        except UserError as error:
            self._once(f"{error}; left out")
            return True

    def stay(self, sleep: Callable[[float], None] = time.sleep) -> NoReturn:
        """Visit again and again, until the process is interrupted."""
        while True:
            if not self._visit(ahead=False).answered:  # whoever asks is near
                sleep(_POLL_S)

    def prepare(self) -> int:
        """Measure the machine, where orders wait and it was not measured yet; how many problems they are about."""
        waiting = self._waiting()
        for target in {order.request.problem.target for order in waiting}:
            with suppress(UserError, HarnessError):  # the orders are answered with it
                self._machine(target)
        return len({_judged(order.request) for order in waiting})

    def _waiting(self) -> list[Order]:
        """Those of one problem one after another, first those whose judge is open."""
        orders = self._bundle.waiting(self._once)
        return sorted(
            orders, key=lambda o: (_judged(o.request) != self._bench.judged, repr(_judged(o.request)), name_of(o))
        )

    def _answer(self, order: Order) -> Answer | None:
        """None where it is left to another machine."""
        key, started = "", time.monotonic()
        try:
            machine = self._machine(order.request.problem.target)
            key = machine.key
            if order.job is not None and order.job.context.machine.key != key:
                began = order.job.context.machine
                self._once(
                    f"{name_of(order)}: left: its run began on {began.device} (driver {began.driver}, torch "
                    f"{began.torch}, {began.dsl}), this is {machine.device} ({machine.driver}, {machine.torch}, "
                    f"{machine.dsl})"
                )
                return None
            what: Found | Fault = _carried_out(order, self._bench.serve(order.request, machine))
        except UserError as error:
            what = self._bench.fault("user", str(error))
        except HarnessError as error:
            what = self._bench.fault("harness", str(error))
        except Exception as error:  # whatever an order does to us, the others are served
            traceback.print_exception(error)
            what = self._bench.fault("harness", f"{type(error).__name__}: {error}")
        wall_s = time.monotonic() - started
        return Answer(what=what, wall_s=wall_s, machine=key, version=VERSION, held=self._bench.held())

    def _machine(self, target: Target) -> Machine:
        if target not in self._machines:
            self._machines[target] = self._machine_of(target)
        return self._machines[target]

    def _once(self, text: str) -> None:
        """Say what would else be said at every visit."""
        if text not in self._told:
            self._told.add(text)
            self._say(text)


class _OpenBench:
    """The bench of the last problem, which stays open until another is wanted."""

    def __init__(self, *, cache: Path, say: Say, bench_of: BenchOf) -> None:
        self._cache, self._say, self._bench_of = cache, say, bench_of
        self._open = ExitStack()  # what the judge of one problem needs
        self._bench: Bench | None = None
        self._folder = ""
        self.judged: Judged | None = None

    def serve(self, request: Request, machine: Machine) -> Bench:
        """The bench at which the last order was carried out, where it serves this request, too; else a new one."""
        judged = _judged(request)
        if self._bench is None or judged != self.judged:
            self.close()
            self._folder = self._open.enter_context(TemporaryDirectory(prefix="tilewright-worker-"))
            name = re.sub(r"[^\w-]", "_", request.problem.name)
            here = replace(request, problem=replace(request.problem, path=f"{self._folder}/{name}.py"))
            places = Places(out=Path(self._folder), cache=self._cache)
            bench = self._bench_of(here, places=places, say=self._say, machine=machine)
            self._bench, self.judged = self._open.enter_context(bench), judged
        return self._bench

    def held(self) -> tuple[Station, ...]:
        return self._bench.held() if self._bench is not None else ()

    def fault(self, whose: Literal["user", "harness"], text: str) -> Fault:
        """What went wrong, without this machine's places; the next order begins afresh."""
        fault = Fault(whose=whose, text=text.replace(f"{self._folder}/", "") if self._folder else text)
        self.close()
        return fault

    def close(self) -> None:
        self._bench = self.judged = None
        self._folder = ""
        self._open.close()


def _carried_out(order: Order, bench: Bench) -> Found:
    if order.job is None:
        return bench.context(order.request)
    outcome = bench.perform(order.job.context, order.job.move)
    if outcome is None or isinstance(outcome, Reply | Candidate):
        raise UserError(f"an order for a {type(order.job.move).__name__}, which no judge carries out")
    return outcome


def _go_ahead(order: Order, answer: Answer, *, bundle: Bundle, bench: _OpenBench, say: Say) -> None:
    """Carry out what follows, adding each outcome to the answer, until a model is wanted or something goes wrong:
    that is told of when it is asked for."""
    begun = _begun(bundle, order, answer)
    if begun is None:
        return
    context, events = begun
    strategy = STRATEGIES[context.strategy](context)
    made: list[Event] = []

    def perform(move: Move) -> Outcome:
        if isinstance(move, Ask):
            raise _ModelWanted
        if isinstance(move, Compose):
            return composed(context, move.recipe)
        return bench.serve(order.request, context.machine).perform(context, move)

    def watch(event: Event) -> None:
        if event.seq < len(events) or isinstance(event.move, Stop):
            return
        made.append(event)
        bundle.reply(order, replace(answer, ahead=tuple(made)))
        say(f"{name_of(order)}: ahead, {type(event.move).__name__.lower()} ({event.wall_s:.1f} s)")

    with TemporaryDirectory(prefix="tilewright-ahead-") as folder, Ledger(Path(folder) / "run.db") as ledger:
        for event in events:
            ledger.append(event.move, event.outcome, wall_s=event.wall_s, held=event.held)
        try:
            drive(strategy, ledger=ledger, perform=perform, watch=watch, held=bench.held)
        except _ModelWanted:
            pass
        except Exception as error:  # as in _answer; it is asked for again, and then answered with the fault
            say(f"{name_of(order)}: not ahead: {error}")
            bench.close()


def _begun(bundle: Bundle, order: Order, answer: Answer) -> tuple[SearchContext, tuple[Event, ...]] | None:
    """The run as it is with this answer; None where nothing follows that a strategy of ours would do."""
    if isinstance(answer.what, Fault) or order.request.strategy not in STRATEGIES:
        return None
    if order.job is None:
        return (as_asked(answer.what, order.request), ()) if isinstance(answer.what, SearchContext) else None
    events = list(order.job.before)
    for asked, found in bundle.answered(order.request.run, numbers=range(len(events) + 1, order.number + 1)):
        if asked.number != len(events) + 1 or asked.job is None or isinstance(found.what, Fault):
            return None
        events.append(Event(
            seq=len(events), move=asked.job.move, outcome=found.what, wall_s=found.wall_s, held=found.held
        ))  # fmt: skip
    return (order.job.context, tuple(events)) if len(events) == order.number else None


def _with_lasts(orders: Iterable[Order]) -> Iterator[tuple[Order, bool]]:
    """Each with whether it is the last of its run."""
    for _, of_run in groupby(orders, key=lambda order: order.request.run):
        *before, last = of_run
        yield from ((order, False) for order in before)
        yield last, True


def _judged(request: Request) -> Judged:
    return request.problem, request.seed, request.timing
