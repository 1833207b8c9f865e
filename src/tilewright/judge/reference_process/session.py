"""The session of a reference's process: it has a problem's module in the candidate's place, and answers for inputs,
truth and budgets beside what every session answers."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import Any

from ..candidate_process.collector import keep_what_is_there
from ..candidate_process.session import CandidateSession
from ..wire import messages as wire
from .answers import ANSWERS, Answer
from .baseline import start_compiler, start_tracer
from .reference import Reference


class ReferenceSession(CandidateSession):
    """Answers what a session answers, and what only a reference can. The code under test is the user's own."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._reference: Reference | None = None
        self._as_candidate = self._answers
        self._answers = MappingProxyType(
            dict(self._answers)
            | {kind: partial(self._answered, answer) for kind, answer in ANSWERS.items()}
            | {wire.LoadProblem: self._load_problem, wire.LoadState: self._load_state}
            | {wire.RecordGraph: self._record_graph}
        )

    def _answered(self, answer: Answer, request: Any) -> Any:
        """By the problem that was loaded; before one was, as a candidate's session does."""
        if self._reference is None:
            return self._as_candidate[type(request)](request)
        return answer(self._reference, self._arenas, request)

    def _let_go(self) -> None:
        """What only makes the next request quicker, and takes memory, goes."""
        if self._reference is not None:
            self._reference.double.release()

    def _load_state(self, request: wire.LoadState) -> None:
        self._state.load(request)
        self._let_go()

    def _drop(self, request: wire.Drop) -> None:
        self._let_go()
        super()._drop(request)

    def _record_graph(self, request: wire.RecordGraph) -> None:
        self._let_go()
        self._looks.record_graph(request)

    def _load_problem(self, request: wire.LoadProblem) -> None:
        self._reference = Reference(
            request.path,
            request.source,
            request.cases,
            subject=self._subject,
            compiled=request.mode if request.compiled else "",
        )
        if request.starts == "compiler":
            start_compiler(self._device)
        elif request.starts == "tracer":
            start_tracer()
        keep_what_is_there()
