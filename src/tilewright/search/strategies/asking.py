"""Asking a model for code: the prompt's common part, the reply read, asked again once where nothing came of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...facts.candidate import Candidate
from ...facts.dialogue import AS_IT_IS, Message, Prompt, Reply, Sampling
from ...facts.move import Ask, Event, Move, Try
from ...facts.outcome import Failure, Timed
from ...facts.problem import TensorSpec
from ...facts.run import SearchContext
from ...facts.tools import MOST_CALLS
from .abridged import abridged
from .category import category
from .composing import Composing
from .edits import Edited, edited
from .faster import faster
from .handing_over import handed_over, nothing_accepted
from .prompts import render
from .rivals import Accepted, with_rivals
from .spending import Spending
from .telling import microseconds
from .tooling import SHARE, replied
from .tuning import Steps

_CALLS_SHARE = 0.3  # of the budget, for what libraries make of the module
_SEPARATOR = re.compile(r"^[#*\s]*={3,}[ \t]*CANDIDATE\b.*$", re.MULTILINE)
_MOST_CANDIDATES = 4
_CUT_OFF = "it was cut off at its greatest length"
_HIDDEN = ("tilewright_kernels/", "original.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReply:
    """A candidate that a model wrote, or the `problem` with its reply; what it said it would do."""

    candidate: Candidate | None
    problem: str
    idea: str
    prediction: str
    others: tuple[WrittenReply, ...] = ()  # further candidates of the same reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A candidate that the judge accepted."""

    candidate: Candidate
    timed: Timed

    @property
    def ns(self) -> float:
        time = self.timed.time("ours")
        assert time is not None
        return time.mid

    @property
    def floor_share(self) -> float:
        return self.timed.floor_ns / self.ns

    @property
    def gain(self) -> float:
        """How many times as fast as eager it is, in its own judgement."""
        ratio = self.timed.ratio("eager")
        return ratio.mid if ratio else 0.0


class Author:
    """Puts prompts about one problem, and keeps count of what was spent."""

    def __init__(self, context: SearchContext) -> None:
        self.context = context
        self.spending = Spending(context)
        self._called: Accepted | None = None
        self._turn = 0
        self.tools_s = 0.0  # that tools have taken
        self._task = task_of(context)

    def move(self, move: Move) -> Steps[Event]:
        event = yield move
        assert isinstance(event, Event)
        self.spending.count(event)
        return event

    def moves(self, moves: Sequence[Move]) -> Steps[tuple[Event, ...]]:
        """Moves that don't depend on one another, made together: what waits for them waits once."""
        if not moves:
            return ()
        events = yield tuple(moves)
        assert isinstance(events, tuple)
        for event in events:
            self.spending.count(event)
        return events

    def tried(self, candidate: Candidate, why: str) -> Steps[Passed | Failure]:
        return _judged((yield from self.move(Try(what=candidate, why=why))))

    def all_tried(self, candidates: Sequence[tuple[Candidate, str]]) -> Steps[tuple[Passed | Failure, ...]]:
        """Judged together, each with the reason why it is tried; of what the budget does not hold, the first alone: a
        reply that was paid for is judged. So fewer may come back than were given."""
        memory = self.spending.tries_left()
        due = candidates[: 1 if self.spending.out_of_time() else max(memory, 1) if memory is not None else None]
        tries = [Try(what=candidate, why=why) for candidate, why in due]
        return tuple(map(_judged, (yield from self.moves(tries))))

    def ask_of(
        self, messages: tuple[Message, ...], why: str, *, sampling: Sampling = AS_IT_IS, system: str = "system"
    ) -> Ask:
        turn, self._turn = self._turn, self._turn + 1
        context = self.context
        tools = context.tools if system == "system" else ()
        said = render(
            system, target=context.problem.target, languages=context.languages, tools=tools, most_calls=MOST_CALLS
        )
        prompt = Prompt(system=said, messages=messages, tools=tools)
        return Ask(prompt=prompt, model=self.context.model, turn=turn, why=why, sampling=sampling)

    def tools_over(self) -> str:
        """Why no tool may be called any more; "" while one may."""
        if self.tools_s >= SHARE * self.context.budget_s:
            return f"the time for tools is used up ({self.tools_s:.0f} s)"
        return self.spending.over(asking=False)

    def replies(self, asks: Sequence[Ask]) -> Steps[tuple[Reply, ...]]:
        """To prompts that lie in a mailbox all at once."""
        return tuple(map(reply_of, (yield from self.moves(asks))))

    def first(self, name: str, **values: Any) -> tuple[Message, ...]:
        return (Message(role="user", text=render(name, **self._task, **values)),)

    def written(self, current: Candidate | None, why: str, name: str, **values: Any) -> Steps[WrittenReply]:
        """What the model makes of `current` under this prompt; a reply that nothing can be done with is told why, and
        asked for once more."""
        reply, messages = yield from replied(self, self.first(name, **values), why, base=current)
        found = read(reply, current)
        if found.candidate is None and not self.spending.over():
            again = render("again", problem=found.problem, truncated=reply.truncated)
            said = Message(role="model", text=reply.text or "(nothing)")
            messages = (*messages, said, Message(role="user", text=again))
            reply, _ = yield from replied(self, messages, f"{why}, again", base=current)
            found = read(reply, current)
        return found

    def calls(self) -> Steps[None]:
        """Moves: `Tune` and `Try` of libraries' calls, as in `rivals`; what the judge takes of them is handed over in
        the end where nothing is faster."""
        libraries = self.context.libraries
        if libraries and "library" not in self.context.without:
            self._called = yield from with_rivals(CountedMoves(self, _CALLS_SHARE), None, libraries)

    def ended(self, best: Passed | None, why: str) -> Steps[None]:
        """Stop: with the best, if it is faster than eager beyond noise, and clean where that was asked for."""
        if self._called is not None and (best is None or faster(self._called[1], best.timed)):
            yield from handed_over(*self._called, context=self.context, why=f"{why}; libraries' calls were the fastest")
            return
        if best is None:
            yield from nothing_accepted(self.context, f"{why}; the judge accepted nothing")
            return
        yield from handed_over(best.candidate, best.timed, context=self.context, why=why)


class CountedMoves(Composing):
    """Realisations whose moves count as the author's, in a `share` of the budget."""

    def __init__(self, author: Author, share: float = 1.0) -> None:
        super().__init__(replace(author.context, budget_s=share * author.context.budget_s))
        self._author = author

    def move(self, move: Move) -> Steps[Event]:
        event = yield from self._author.move(move)
        self.spent_s += event.wall_s
        return event

    def has_time(self, share: float) -> bool:
        return super().has_time(share) and not self._author.spending.over()


def _judged(event: Event) -> Passed | Failure:
    assert isinstance(event.move, Try) and isinstance(event.move.what, Candidate)
    if isinstance(event.outcome, Timed):
        return Passed(candidate=event.move.what, timed=event.outcome)
    assert isinstance(event.outcome, Failure)
    return event.outcome


def reply_of(event: Event) -> Reply:
    assert isinstance(event.outcome, Reply)
    return event.outcome


def read(reply: Reply, current: Candidate | None) -> WrittenReply:
    """A reply that was cut off is not used in part: what is missing may be what makes it right. Of several candidates
    in a reply those that can be made, the first with the `others`."""
    parts = [part for part in _SEPARATOR.split(reply.text)[1:] if part.strip()][:_MOST_CANDIDATES]
    if len(parts) > 1:
        found = [_read_one(replace(reply, text=part), current) for part in parts]
        made = [w for w in found if w.candidate is not None]
        return replace(made[0], others=tuple(made[1:])) if made else found[0]
    return _read_one(replace(reply, text=parts[0]) if parts else reply, current)


def _read_one(reply: Reply, current: Candidate | None) -> WrittenReply:
    made = edited(current, reply.text)
    if reply.truncated:
        made = Edited(candidate=None, problem=_CUT_OFF)
    elif reply.empty:
        made = Edited(candidate=None, problem=f"it was empty ({reply.finish})")
    return WrittenReply(
        candidate=made.candidate, problem=made.problem, idea=_line(reply.text, "IDEA") or "(no idea stated)",
        prediction=_line(reply.text, "PREDICTION"),
    )  # fmt: skip


def _line(text: str, name: str) -> str:
    found = re.search(rf"^[\s*#>]*{name}[\s*]*:[\s*]*(.+?)[\s*]*$", text, flags=re.MULTILINE | re.IGNORECASE)
    return found[1][:300] if found else ""


def shown(candidate: Candidate, *, whole: bool = False) -> dict[str, Any]:
    """Its files as prompts show them, or `whole`, and the names of those that they do not."""
    hidden = [f.path for f in candidate.files if f.path.startswith(_HIDDEN)]
    own = [f for f in candidate.files if f.path not in hidden]
    files = own if whole else [replace(f, text=abridged(f.text)) for f in own]
    return {"files": files, "hidden": hidden}


def task_of(context: SearchContext) -> dict[str, Any]:
    """What `task.jinja` is filled with."""
    machine, problem = context.machine, context.problem
    main = context.cases[0]
    return {
        "category": category(main.graph),
        "mode": problem.mode,
        "source": problem.source.strip(),
        "target": problem.target,
        "cases": [
            {
                "inputs": _specs(case.inputs), "outputs": _specs(case.outputs),
                "bytes": f"{case.work.bytes_moved / 1e6:.4g} MB", "flops": f"{case.work.flops:.4g}",
            }
            for case in context.cases
        ],
        "device": machine.device,
        "processors": machine.processors,
        "bandwidth": f"{machine.copy_bytes_per_s / 1e9:.4g} GB/s",
        "matmul": [(dtype, f"{rate / 1e12:.4g} Tflop/s") for dtype, rate in machine.matmul_flops_per_s],
        "floor": microseconds(machine.floor_ns(main.work)),
        "hardware": context.hardware,
        "lessons_of_before": context.lessons,
    }  # fmt: skip


def _specs(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{s.dtype}{list(s.shape)}" for s in specs) or "none"
