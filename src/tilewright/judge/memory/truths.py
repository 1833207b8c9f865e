"""What the reference gives on a set of inputs, and the float64 truth of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..client import CellFault
from ..wire import messages as wire
from .moved import CaseState
from .one_case import OneCase


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthFacts:
    """`exact`: the truth was computed in float64; else it is the reference's own result, for the reason given.
    `no_slack`: why it is not known how far gradients move with the last bits of the inputs, where it is not."""

    exact: bool
    why_not: str = ""
    no_slack: str = ""


class Truths:
    """Of one case, for the last set of inputs that was asked for."""

    def __init__(self, case: OneCase, state: CaseState) -> None:
        self._described, self._reference, self._limits = case.described, case.reference, case.limits
        self._arenas, self._places = case.arenas, case.places
        self._state = state

    def call(self, k: int, *, seed: int) -> None:
        """The reference's own result on pool set `k`; its state is as before afterwards."""
        call = wire.CallRequest(
            tag=0, args=self._described.args, inputs=self._places.pool[k], poison_bytes=(), seed=seed
        )
        self._reference.ask(call, wire.Called, limit_s=self._limits.call_s)
        self._reference.do(wire.StoreRequest(tag=0, refs=self._places.own))
        self._state.take_left()
        self._reference.do(wire.Drop())

    def run(self, k: int, *, seed: int) -> TruthFacts:
        """The reference's own result and the truth on pool set `k`."""
        self.call(k, seed=seed)
        truth = wire.Truth(
            args=self._described.args, inputs=self._places.pool[k], outputs=self._places.truth, seed=seed,
            buffers=self._described.mutated_state, moved=self._places.moved_truth,
        )  # fmt: skip
        try:
            self._reference.do(truth, limit_s=self._limits.call_s)
        except CellFault as fault:
            if not self._reference.alive:
                raise
            self.doubt()
            return TruthFacts(exact=False, why_not=fault.summary)
        return TruthFacts(exact=True, no_slack=self._find_slack(k, seed))

    def _find_slack(self, k: int, seed: int) -> str:
        """Have the slack of the gradients computed, where there are any; why that failed, or ""."""
        if not self._places.slack:
            return ""
        request = wire.Slack(
            args=self._described.args, inputs=self._places.pool[k], own=self._places.own, truth=self._places.truth,
            slack=self._places.slack, seed=seed,
        )  # fmt: skip
        try:
            self._reference.do(request, limit_s=self._limits.call_s)
        except CellFault as fault:
            if not self._reference.alive:
                raise
            self._clear_slack()
            return fault.summary
        return ""

    @property
    def reference_lives(self) -> bool:
        return self._reference.alive

    def _clear_slack(self) -> None:
        for ref in self._places.slack:
            self._arenas.private.tensor(ref).zero_()
        self._arenas.settle()

    def doubt(self) -> None:
        """Let the reference's own result stand as the truth."""
        self._clear_slack()
        for own, truth in zip(
            self._places.own + self._places.moved, self._places.truth + self._places.moved_truth, strict=True
        ):
            self._arenas.private.tensor(truth).copy_(self._arenas.private.tensor(own))
        self._arenas.settle()

    def own(self) -> tuple[Tensor, ...]:
        return tuple(self._arenas.private.tensor(r) for r in self._places.own)

    def truth(self) -> tuple[Tensor, ...]:
        return tuple(self._arenas.private.tensor(r) for r in self._places.truth)

    def slack(self) -> tuple[Tensor | None, ...]:
        """By result: how far a gradient moves with the last bits of the inputs; None for what forward returns, and for
        what is complex."""
        found = tuple(None if r.spec.dtype == "c128" else self._arenas.private.tensor(r) for r in self._places.slack)
        return (None,) * (len(self._places.own) - len(found)) + found

    def raise_slack(self, result: int, amount: float) -> None:
        """Let all of a gradient's elements differ by so much more."""
        self._arenas.private.tensor(self._places.slack[result - len(self._places.own)]).add_(amount)
        self._arenas.settle()

    def moved(self) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """The mutated buffers: the candidate's, the reference's and the truth."""
        return tuple(
            (self._arenas.shared.tensor(a), self._arenas.private.tensor(b), self._arenas.private.tensor(c))
            for a, b, c in zip(self._places.after, self._places.moved, self._places.moved_truth, strict=True)
        )
