"""The pool: judging processes, each with a thread that takes tickets from the queue and keeps what comes of them."""

from __future__ import annotations

import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...edges.queue import QueueDown, TicketQueue
from ...edges.sandbox.offspring import ending
from ...facts.errors import HarnessError
from ...facts.ticket import JudgingOrder, Submission, Taken, TicketFault, TicketVerdict
from .process import JudgeEnded, Unwanted

_IDLE_S = 0.1
_KEEP_S = 1.0  # so often leases are prolonged, and cancelled tickets noticed
_PRUNE_S = 600.0
_SAME = 8  # tickets about one problem in a row, before another problem has its turn
_MOST_LINES, _MOST_TICKETS, _LONGEST = 200, 1000, 300


class TicketJudge(Protocol):
    """What judges: a JudgingProcess, or a fake one."""

    def judge(
        self, order: JudgingOrder, *, say: Callable[[str], None], wanted: Callable[[], bool], limit_s: float
    ) -> TicketVerdict | TicketFault: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTerms:
    """`limit_s`: what a judgement may take at most; `kept_s`: for how long what has ended is kept."""

    limit_s: float
    kept_s: float


@dataclass(slots=True)
class ProgressBoard:
    """What was said of the latest tickets, by any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lines: OrderedDict[str, deque[tuple[int, str]]] = field(default_factory=OrderedDict)

    def say(self, ticket: str, text: str) -> None:
        with self._lock:
            lines = self._lines.setdefault(ticket, deque(maxlen=_MOST_LINES))
            lines.append((max(lines[-1][0] + 1 if lines else 0, round(1e3 * time.time())), text[:_LONGEST]))
            while len(self._lines) > _MOST_TICKETS:
                self._lines.popitem(last=False)

    def after(self, ticket: str, number: int) -> list[tuple[int, str]]:
        """The lines of a ticket that follow this one, with their numbers, which grow across servers."""
        with self._lock:
            return [(n, text) for n, text in self._lines.get(ticket, ()) if n > number]


class JudgePool:
    """Threads that work until `close`. `path_of`: where the file of a submission's problem lies, "" where its text was
    sent; it raises KeyError for one that is not there any more."""

    def __init__(
        self, queue: TicketQueue, judges: Sequence[TicketJudge], terms: PoolTerms, *,
        path_of: Callable[[Submission], str], say: Callable[[str], None], board: ProgressBoard,
    ) -> None:  # fmt: skip
        self._queue, self._terms, self._path_of, self._say, self._board = queue, terms, path_of, say, board
        self._over = threading.Event()
        self._working: set[str] = set()
        self._ours: frozenset[str] = frozenset()  # of these, those that nobody has cancelled or taken over
        self._threads = [threading.Thread(target=self._work, args=(judge,), daemon=True) for judge in judges]
        self._threads.append(threading.Thread(target=self._keep, daemon=True))
        self._taking = threading.Lock()

    def start(self) -> None:
        """Have the tickets of an earlier run of this server wait once more, then begin."""
        self._queue.recover(started=True)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End what is being judged, which waits once more, and all judging processes."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    @property
    def _leaving(self) -> bool:
        return self._over.is_set() or ending()

    def _work(self, judge: TicketJudge) -> None:
        about, in_a_row = "", 0
        try:
            while not self._leaving:
                try:
                    taken = self._take("" if in_a_row >= _SAME else about)
                    if taken is None:
                        self._over.wait(_IDLE_S)
                        continue
                    in_a_row = in_a_row + 1 if taken.submission.about == about else 1
                    about = taken.submission.about
                    try:
                        self._judge(judge, taken)
                    finally:
                        with self._taking:
                            self._working.discard(taken.id)
                except QueueDown as error:
                    self._say(f"{error}; tried again")
                    self._over.wait(_KEEP_S)
        finally:
            judge.close()

    def _take(self, prefers: str) -> Taken | None:
        with self._taking:  # `_keep` sees no ticket that `_ours` lacks
            taken = self._queue.take(prefers)
            if taken is not None:
                self._working.add(taken.id)
                self._ours |= {taken.id}
        return taken

    def _judge(self, judge: TicketJudge, taken: Taken) -> None:
        ticket, submission = taken.id, taken.submission
        try:
            path = self._path_of(submission)
        except (KeyError, OSError):
            text = f"problem {submission.problem!r} is not under the server's roots any more"
            self._queue.end(ticket, TicketFault(whose="problem", text=text))
            return
        self._board.say(ticket, f"begun, attempt {taken.attempts}")
        started = time.monotonic()
        try:
            outcome = judge.judge(
                JudgingOrder(path=path, submission=submission), say=lambda text: self._board.say(ticket, text),
                wanted=lambda: ticket in self._ours and not self._leaving, limit_s=self._terms.limit_s,
            )  # fmt: skip
        except Unwanted:
            if self._leaving:
                self._queue.give_back(ticket, begun=False)
            return
        except JudgeEnded as error:
            self._say(f"{ticket}: {error}")
            self._queue.give_back(ticket, begun=not self._leaving)
            return
        except HarnessError as error:  # this process is about to end
            self._queue.give_back(ticket, begun=False)
            self._say(str(error))
            return
        except Exception as error:  # whatever one ticket does to us, the others are judged
            traceback.print_exception(error)
            self._queue.give_back(ticket, begun=True)
            return
        self._end(ticket, outcome)
        said = "judged" if isinstance(outcome, TicketVerdict) else f"fault of the {outcome.whose}'s: {outcome.text}"
        self._say(f"{ticket}: {submission.problem}: {said} ({time.monotonic() - started:.1f} s)")

    def _end(self, ticket: str, outcome: TicketVerdict | TicketFault) -> None:
        while True:
            try:
                self._queue.end(ticket, outcome)
                return
            except QueueDown as error:
                if self._leaving:
                    raise
                self._say(f"{error}; what came of {ticket} is kept until then")
                self._over.wait(_KEEP_S)

    def _keep(self) -> None:
        pruned_s = 0.0
        while not self._leaving:
            try:
                with self._taking:
                    self._ours = self._queue.keep(frozenset(self._working))
                self._queue.recover()
                if time.monotonic() - pruned_s > _PRUNE_S:
                    pruned_s = time.monotonic()
                    self._queue.prune(older_s=self._terms.kept_s)
            except QueueDown as error:
                self._say(str(error))
            self._over.wait(_KEEP_S)
