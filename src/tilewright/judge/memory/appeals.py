"""What only the reference's process can tell of others' results: verdicts by error budgets, and where results turn."""

from __future__ import annotations

from typing import TypeVar

from ..client import CellFault
from ..wire import messages as wire
from .one_case import OneCase

T = TypeVar("T")
_APPEAL, _SLOWER = 2.0, 4.0  # times what a call may take: some thirty in float64; and of a slow or busy machine
_APPROACH = 8.0  # and to bring inputs beside turns is some hundred


class Appeals:
    """Of one case, on the pool set for which the truth was computed last."""

    def __init__(self, case: OneCase) -> None:
        self._described, self._reference, self._limits = case.described, case.reference, case.limits
        self._places = case.places

    def appeal(self, k: int, outputs: tuple[int, ...], *, place: int, seed: int, least: float = 0.0) -> wire.Judgement:
        """The verdict on these outputs of `place`, on pool set `k`, by the error budget of each element; without any
        where that can't be had, and why. `least`: how far the user lets everything be rounded, relative."""
        request = wire.Appeal(
            args=self._described.args, inputs=self._places.pool[k], outputs=outputs, seed=seed, least=least,
            got=tuple(self._places.results[place][i] for i in outputs), own=tuple(self._places.own[i] for i in outputs),
            truth=tuple(self._places.truth[i] for i in outputs),
            limit_s=_APPEAL * self._limits.call_s,
        )  # fmt: skip
        found = self._ask_more(request, wire.Judgement, times=_SLOWER * _APPEAL)
        return wire.Judgement(judged=(), note=found) if isinstance(found, str) else found

    def approach(self, k: int, *, seed: int, number: int, state: bool) -> wire.Approached | None:
        """Move pool set `k`, an own draw, or the reference's state to where results turn; None where that can't be
        had."""
        request = wire.Approach(
            args=self._described.args, inputs=self._places.pool[k], seed=seed, number=number, state=state,
        )  # fmt: skip
        found = self._ask_more(request, wire.Approached, times=_APPROACH)
        return None if isinstance(found, str) else found

    def _ask_more(self, request: object, kind: type[T], *, times: float = 1.0) -> T | str:
        """The answer, or why there is none."""
        try:
            return self._reference.ask(request, kind, limit_s=times * self._limits.call_s)
        except CellFault as fault:
            if not self._reference.alive or not (fault.by_code or fault.reason == "out_of_memory"):
                raise
            return fault.summary
