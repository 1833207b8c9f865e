"""The benches of a run's pieces: each is a problem of its own, judged as any other; one is open at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..facts.errors import Lack, UserError
from ..facts.machine import Machine
from ..facts.move import Outcome, Within
from ..facts.outcome import Failure, Station
from ..facts.pattern import Piece
from ..facts.run import GIVEN, Brief, Limits, Request, Timing
from ..realise.piece_code import NotAlone, piece_code

if TYPE_CHECKING:
    from .workbench import Bench, BenchOf, Places

_MOST_TIMING_S = 2.0  # for which a piece's candidate is timed: what counts is judged in the whole module


class Pieces:
    """See the module's docstring. A piece that is not open any more, since another was or the run was resumed, is
    opened anew: what it computes is known from the whole module's graph."""

    def __init__(
        self, request: Request, *, places: Places, machine: Machine, say: Callable[[str], None], bench_of: BenchOf
    ) -> None:
        self._request = request
        self._places = places
        self._machine = machine
        self._say = say
        self._bench_of = bench_of
        self._open: tuple[Piece, Bench, Brief] | None = None
        self._held: tuple[Station, ...] = ()

    def entered(self, whole: Brief, piece: Piece) -> Brief | Failure:
        """The piece's own problem, opened; a Failure where it can't be run by itself."""
        self.close()
        graph = whole.cases[0].graph
        assert graph is not None
        try:
            code = piece_code(self._request.problem, graph, piece, whole.spreads)
        except NotAlone as why:
            return Failure(stage="propose", reason="not_alone", summary=f"{piece.title}: {why}")
        timing = Timing(budget_s=min(_MOST_TIMING_S, self._request.timing.budget_s), compiled=False)
        request = replace(
            self._request,
            problem=code.problem,
            strategy=GIVEN if any(c.pattern == piece.name for c in whole.libraries) else "catalog",
            timing=timing,
            sanitize=False,
            limits=Limits(),
            without=(),
            algebra=False,
        )
        places = replace(self._places, out=self._places.out / "pieces" / piece.name)
        bench = self._bench_of(request, places=places, say=self._say, machine=self._machine)
        try:
            brief = bench.brief(request)
        except Lack:
            bench.start_afresh()
            raise
        except UserError as error:  # the problem is ours: what is wrong with it is that it does not stand alone
            bench.start_afresh()
            return Failure(stage="propose", reason="not_alone", summary=f"{piece.title}: {error}")
        self._open = piece, bench, brief
        self._held += brief.held
        return brief

    def perform(self, whole: Brief, made: Within) -> Outcome:
        if self._open is None or self._open[0] != made.piece:
            entered = self.entered(whole, made.piece)
            if isinstance(entered, Failure):
                return entered
        assert self._open is not None
        _, bench, brief = self._open
        return bench.perform(brief, made.move)

    def held(self) -> tuple[Station, ...]:
        """For what pieces held the device since this was last asked, and how long."""
        held, self._held = self._held, ()
        return (*held, *(self._open[1].held() if self._open is not None else ()))

    def close(self) -> None:
        """End the cells of the piece that is open."""
        if self._open is not None:
            self._held += self._open[1].held()
            self._open[1].start_afresh()
            self._open = None
