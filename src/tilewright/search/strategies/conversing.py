"""A model as an agent: one dialogue with tools, in which it submits when it wants to and hears each verdict."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ...facts.candidate import Candidate
from ...facts.dialogue import Message
from ...facts.outcome import Failure
from ...facts.run import SearchContext
from .asking import Author, Passed, WrittenReply, read, shown
from .cutegen import OURS, PARTS, CutegenPlan, KernelRound
from .prompts import render
from .telling import evidence, measured, refusal
from .tooling import Dialogue, replied
from .tuning import Steps

__all__ = ["PARTS", "converse"]

_STOP = re.compile(r"^[#*\s>]*STOP[*\s]*:[*\s]*(.+?)[*\s]*$", re.MULTILINE)
_MOST_CHARACTERS = 120_000  # of a dialogue: it begins anew then, from the best and what was tried
PLAN = replace(OURS, fixes=0)


def converse(context: SearchContext) -> Steps[None]:
    """Moves: as `cutegen` begins; then the turns of one dialogue, each an `Ask` with the `CallTool`s that it asks for
    and the `Try`s of what it submits; `Stop` with the best where the model says STOP, at 95% of the floor, on a budget,
    or where nothing helps any more."""
    author = Author(context)
    yield from author.calls()
    search = _Conversation(author, PLAN if "tuning" not in context.without else replace(PLAN, tunes=False))
    why = yield from search.run()
    yield from search.settle_at_last()
    yield from author.ended(search.best, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """The last submission, which the judge refused: what follows may mend it."""

    candidate: Candidate
    failure: Failure


class _Conversation(KernelRound):
    """The kernel's way as a dialogue; `messages` is () where it begins anew."""

    def __init__(self, author: Author, plan: CutegenPlan) -> None:
        super().__init__(author, plan)
        self.messages: Dialogue = ()
        self.refused: _Refused | None = None
        self.ends = ""  # why the model stops

    def _enough(self) -> str:
        return f"the model stops: {self.ends}" if self.ends else super()._enough()

    def _step(self, step: int) -> Steps[None]:
        base = self.refused.candidate if self.refused else self.current.candidate if self.current else None
        messages = self.messages or self._begun()
        reply, messages = yield from replied(self.author, messages, f"turn {step}", base=base)
        self.messages = (*messages, Message(role="model", text=reply.text or "(nothing)"))
        stop = _STOP.search(reply.text)
        written = read(reply, base)
        if stop is not None and written.candidate is None:
            self.ends = stop[1][:200]
            return
        best, told = self.current, len(self.ledger)
        written = yield from self.fastest_of(step, written, best)
        passed = yield from self._submitted(step, written)
        yield from self.settle(written, best, passed if isinstance(passed, Passed) else _line(passed))
        self._tell(written, passed, told)

    def _submitted(self, step: int, written: WrittenReply) -> Steps[Passed | Failure | str]:
        """The verdict on what was submitted; a text says why there is none."""
        candidate, self.refused = written.candidate, None
        if candidate is None:
            return f"no use: {written.problem}"
        if candidate.id in self.seen:
            return "was tried before, letter for letter"
        self.seen.add(candidate.id)
        outcome = self.judged.pop(candidate.id, None) or (
            yield from self.author.tried(candidate, f"turn {step}: {written.idea}")
        )
        if isinstance(outcome, Failure):
            self.refused = _Refused(candidate=candidate, failure=outcome)
        return outcome

    def _begun(self) -> Dialogue:
        best = self.current
        seen = shown(best.candidate) if best else {"files": (), "hidden": ()}
        self.refused = None
        return self.author.first(
            "agent", ledger=self.ledger, near=self.author.context.near, measured=measured(best.timed) if best else (),
            evidence=evidence(best.timed) if best else (), lost=self.lost.told if self.lost else "", **seen,
        )  # fmt: skip

    def _tell(self, written: WrittenReply, passed: Passed | Failure | str, told: int) -> None:
        """The verdict as the next message; a dialogue that has grown too long begins anew."""
        if sum(len(m.text) + sum(len(a.text) for a in m.answers) for m in self.messages) > _MOST_CHARACTERS:
            self.messages = ()
            return
        better = isinstance(passed, Passed) and self.current is passed
        text = render(
            "verdict_told", lines=self.ledger[told:], best=measured(self.current.timed) if self.current else (),
            better=better, files=shown(self.current.candidate)["files"] if self.current and not better else (),
            refused=refusal(passed) if isinstance(passed, Failure) else None, nothing=isinstance(passed, str),
        )  # fmt: skip
        self.messages = (*self.messages, Message(role="user", text=text))


def _line(passed: Failure | str) -> str:
    return passed if isinstance(passed, str) else f"refused at {passed.stage}: {passed.reason}: {passed.summary}"
