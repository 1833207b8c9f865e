"""The machine that judges for another: takes the orders of a bundle, those of one problem by one judge, and answers."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NoReturn, Self

from ..edges.bundle import Bundle, name_of
from ..edges.gpu.machine import machine as measured_machine
from ..facts.candidate import Candidate
from ..facts.dialogue import Reply
from ..facts.errors import HarnessError, UserError
from ..facts.machine import Machine
from ..facts.order import Answer, Fault, Found, Order
from ..facts.problem import Problem, Target
from ..facts.run import Request, Timing
from ..facts.version import VERSION
from .workbench import Bench, BenchOf, Places, Say, Workbench

_POLL_S = 1.0

Judged = tuple[Problem, int, Timing]  # what orders share that one judge can carry out


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What became of the orders that lay there: answered, of those with a fault of this machine's; and left."""

    answered: int
    faults: int
    left: int


class Worker:
    """Serves one bundle; opened by `with`. The judge of the last problem stays open until another is wanted.

    An order is left where its run began on another machine: times could not be compared."""

    def __init__(
        self, bundle: Bundle, *, cache: Path, say: Say, bench_of: BenchOf = Workbench,
        machine_of: Callable[[Target], Machine] | None = None,
    ) -> None:  # fmt: skip
        self._bundle = bundle
        self._cache = cache
        self._say = say
        self._bench_of = bench_of
        self._machine_of = machine_of or (lambda target: measured_machine(target, cache_dir=cache))
        self._machines: dict[Target, Machine] = {}
        self._told: set[str] = set()
        self._open = ExitStack()  # what the judge of one problem needs
        self._judged: Judged | None = None
        self._bench: Bench | None = None
        self._folder = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def visit(self) -> Visit:
        """Answer all that waits; each answer is durable before the next order is taken."""
        answered = faults = left = 0
        for order in self._sorted(self._bundle.waiting(self._once)):
            answer = self._answer(order)
            if answer is None:
                left += 1
                continue
            self._bundle.reply(order, answer)
            answered += 1
            fault = answer.what if isinstance(answer.what, Fault) else None
            faults += fault is not None and fault.whose == "harness"
            told = f"fault: {fault.text}" if fault else type(answer.what).__name__.lower()
            self._say(f"{name_of(order)}: {told} ({answer.wall_s:.1f} s)")
        return Visit(answered=answered, faults=faults, left=left)

    def stay(self, sleep: Callable[[float], None] = time.sleep) -> NoReturn:
        """Visit again and again, until the process is interrupted."""
        while True:
            if not self.visit().answered:
                sleep(_POLL_S)

    def _sorted(self, orders: tuple[Order, ...]) -> list[Order]:
        """Those of one problem one after another, first those whose judge is open."""
        return sorted(orders, key=lambda o: (_judged(o.request) != self._judged, repr(_judged(o.request)), name_of(o)))

    def _answer(self, order: Order) -> Answer | None:
        """None where it is left to another machine."""
        key, started = "", time.monotonic()
        try:
            machine = self._machine(order.request.problem.target)
            key = machine.key
            if order.job is not None and order.job.brief.machine.key != key:
                began = order.job.brief.machine
                self._once(
                    f"{name_of(order)}: left: its run began on {began.device} (driver {began.driver}, torch "
                    f"{began.torch}, {began.dsl}), this is {machine.device} ({machine.driver}, {machine.torch}, "
                    f"{machine.dsl})"
                )
                return None
            what: Found | Fault = self._carried_out(order, machine)
        except UserError as error:
            what = self._fault("user", str(error))
        except HarnessError as error:
            what = self._fault("harness", str(error))
        except Exception as error:  # whatever an order does to us, the others are served
            traceback.print_exception(error)
            what = self._fault("harness", f"{type(error).__name__}: {error}")
        return Answer(
            what=what, wall_s=time.monotonic() - started, machine=key, version=VERSION,
            held=self._bench.held() if self._bench is not None else (),
        )  # fmt: skip

    def _carried_out(self, order: Order, machine: Machine) -> Found:
        bench = self._bench_for(order.request, machine)
        if order.job is None:
            return bench.brief(order.request)
        outcome = bench.perform(order.job.brief, order.job.move)
        if outcome is None or isinstance(outcome, Reply | Candidate):
            raise UserError(f"an order for a {type(order.job.move).__name__}, which no judge carries out")
        return outcome

    def _machine(self, target: Target) -> Machine:
        if target not in self._machines:
            self._machines[target] = self._machine_of(target)
        return self._machines[target]

    def _bench_for(self, request: Request, machine: Machine) -> Bench:
        """The bench at which the last order was carried out, where it serves this request, too; else a new one."""
        judged = _judged(request)
        if self._bench is None or judged != self._judged:
            self._close()
            self._folder = self._open.enter_context(TemporaryDirectory(prefix="tilewright-worker-"))
            name = re.sub(r"[^\w-]", "_", request.problem.name)
            here = replace(request, problem=replace(request.problem, path=f"{self._folder}/{name}.py"))
            places = Places(out=Path(self._folder), cache=self._cache)
            bench = self._bench_of(here, places=places, say=self._say, machine=machine)
            self._bench, self._judged = self._open.enter_context(bench), judged
        return self._bench

    def _fault(self, whose: Literal["user", "harness"], text: str) -> Fault:
        """What went wrong, without this machine's places; the next order begins afresh."""
        fault = Fault(whose=whose, text=text.replace(f"{self._folder}/", "") if self._folder else text)
        self._close()
        return fault

    def _close(self) -> None:
        self._bench = self._judged = None
        self._folder = ""
        self._open.close()

    def _once(self, text: str) -> None:
        """Say what would else be said at every visit."""
        if text not in self._told:
            self._told.add(text)
            self._say(text)


def _judged(request: Request) -> Judged:
    return request.problem, request.seed, request.timing
