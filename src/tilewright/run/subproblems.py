"""The benches of a run's subproblems: each is a problem of its own, judged as any other; one is open at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..facts.errors import Lack, UserError
from ..facts.machine import Machine
from ..facts.move import Outcome, Within
from ..facts.outcome import Failure, Station
from ..facts.pattern import Subproblem
from ..facts.run import GIVEN, Limits, Request, SearchContext, Timing
from ..realise.subproblem_code import NotAlone, subproblem_code
from .places import Bench, BenchOf, Places

_MOST_TIMING_S = 2.0  # for which a subproblem's candidate is timed: what counts is judged in the whole module


class Subproblems:
    """See the module's docstring. A subproblem that is not open any more, since another was or the run was resumed, is
    opened anew: what it computes is known from the whole module's graph."""

    def __init__(
        self, request: Request, *, places: Places, machine: Machine, say: Callable[[str], None], bench_of: BenchOf
    ) -> None:
        self._request, self._places, self._machine = request, places, machine
        self._say, self._bench_of = say, bench_of
        self._open: tuple[Subproblem, Bench, SearchContext] | None = None
        self._held: tuple[Station, ...] = ()

    def entered(self, whole: SearchContext, subproblem: Subproblem) -> SearchContext | Failure:
        """The subproblem's own problem, opened; a Failure where it can't be run by itself."""
        self.close()
        graph = whole.cases[0].graph
        assert graph is not None
        try:
            code = subproblem_code(self._request.problem, graph, subproblem, whole.spreads)
        except NotAlone as why:
            return Failure(stage="propose", reason="not_alone", summary=f"{subproblem.title}: {why}")
        timing = Timing(budget_s=min(_MOST_TIMING_S, self._request.timing.budget_s), compiled=False)
        request = replace(
            self._request, problem=code.problem,
            strategy=GIVEN if any(c.pattern == subproblem.name for c in whole.libraries) else "catalog", timing=timing,
            sanitize=False, limits=Limits(), without=("table",), algebra=False,
        )  # fmt: skip
        places = replace(self._places, out=self._places.out / "pieces" / subproblem.name)
        bench = self._bench_of(request, places=places, say=self._say, machine=self._machine)
        try:
            context = bench.context(request)
        except Lack:
            bench.start_afresh()
            raise
        except UserError as error:  # the problem is ours: what is wrong with it is that it does not stand alone
            bench.start_afresh()
            return Failure(stage="propose", reason="not_alone", summary=f"{subproblem.title}: {error}")
        self._open = subproblem, bench, context
        self._held += context.held
        return context

    def perform(self, whole: SearchContext, made: Within) -> Outcome:
        if self._open is None or self._open[0] != made.subproblem:
            entered = self.entered(whole, made.subproblem)
            if isinstance(entered, Failure):
                return entered
        assert self._open is not None
        _, bench, context = self._open
        return bench.perform(context, made.move)

    def held(self) -> tuple[Station, ...]:
        """For what subproblems held the device since this was last asked, and how long."""
        held, self._held = self._held, ()
        return (*held, *(self._open[1].held() if self._open is not None else ()))

    def close(self) -> None:
        """End the cells of the subproblem that is open."""
        if self._open is not None:
            self._held += self._open[1].held()
            self._open[1].start_afresh()
            self._open = None
