"""A judging process as the pool sees it: started when it is first needed, killed when a ticket must not go on."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from ...edges.sandbox.offspring import ending, offspring
from ...facts import codec
from ...facts.errors import HarnessError
from ...facts.ticket import JudgingOrder, JudgingProgress, JudgingTerms, TicketFault, TicketVerdict

COMMAND = (sys.executable, "-P", "-m", "tilewright.faces.serving.judging")
_POLL_S = 0.1
_GRACE_S = 10.0  # for one that ends by itself
_PIECE_BYTES = 1 << 16
_MOST_LINE = 8 << 20  # bytes of what it says in one line


class JudgeEnded(HarnessError):
    """The process ended, or said what it never says, while it worked on a ticket."""


class Unwanted(Exception):
    """The ticket is not to be worked on any more."""


class JudgingProcess:
    """Belongs to one thread. `environment`: variables that it has beside ours, or in their place."""

    def __init__(
        self, terms: JudgingTerms, *, environment: Mapping[str, str], command: tuple[str, ...] = COMMAND
    ) -> None:  # fmt: skip
        self.terms, self._command = terms, command
        self.environment = {**os.environ, **environment}
        self._open = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._working = False

    def judge(
        self, order: JudgingOrder, *, say: Callable[[str], None], wanted: Callable[[], bool], limit_s: float
    ) -> TicketVerdict | TicketFault:
        """What came of the order. Raises JudgeEnded; Unwanted where `wanted` says no meanwhile. After either, and after
        `limit_s`, the process and all below it have ended, and the next order has a new one."""
        ends_s = time.monotonic() + limit_s
        try:
            self._tell(order)
            self._working = True
            while True:
                if not wanted():
                    raise Unwanted
                if time.monotonic() > ends_s:
                    self.close()
                    return TicketFault(whose="project", text=f"it was not judged within {limit_s:g} s (--limit)")
                for said in self._lines():
                    if not isinstance(said, JudgingProgress):
                        self._working = False
                        return said
                    say(said.text)
        except (JudgeEnded, Unwanted):
            self.close()
            raise

    def close(self) -> None:
        """End it. Safe to call twice."""
        process, self._process, self._said = self._process, None, b""
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()  # one that waits for orders ends by itself
            process.stdin = None
            if not self._working or ending():  # that one was told to end: a second word would not let it clean up
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_S)
        self._working = False
        self._open.close()

    def _tell(self, order: JudgingOrder) -> None:
        try:
            if self._process is None or self._process.poll() is not None:
                self.close()
                self._process = self._open.enter_context(offspring(
                    self._command, polite=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment,
                ))  # fmt: skip
                self._write(codec.dumps(self.terms))
            self._write(codec.dumps(order))
        except OSError as error:
            raise JudgeEnded(f"the judging process could not be told of a ticket: {error}") from error

    def _write(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def _lines(self) -> list[TicketVerdict | TicketFault | JudgingProgress]:
        """What it has said meanwhile, in whole lines."""
        assert self._process is not None and self._process.stdout is not None
        out = self._process.stdout.fileno()
        if not select.select([out], [], [], _POLL_S)[0]:
            return []
        piece = os.read(out, _PIECE_BYTES)
        if not piece or len(self._said) > _MOST_LINE:
            raise JudgeEnded("the judging process ended while it worked on this")
        *lines, self._said = (self._said + piece).split(b"\n")
        try:
            return [codec.read(line.decode(), TicketVerdict | TicketFault | JudgingProgress) for line in lines]  # type: ignore[arg-type]
        except ValueError as error:
            raise JudgeEnded(f"the judging process said what it never says: {error}") from None
