"""The tools of facts.tools as a coding agent has them: it looks at a candidate before it submits, and reads."""

from __future__ import annotations

from typing import Any

from ..facts.candidate import Candidate
from ..facts.dialogue import ToolAnswer
from ..facts.errors import UserError
from ..facts.tools import MOST_VARIANTS
from ..run.session import Session
from . import answers
from .agent_runs import AgentRuns, OpenRun, Told
from .tools import WAIT_S, as_candidate, given

Files = dict[str, str | None] | None


class LookingTools:
    """They book their time on the run, and count as no try. `files`, `path` and `base` are as of `submit`. What they
    are about stands in the one table, which models read, too."""

    def __init__(self, agent_runs: AgentRuns) -> None:
        self._desk = agent_runs

    async def compile(
        self, ctx: Any, run: str = "", files: Files = None, path: str = "", base: str = "", wait_s: float = WAIT_S
    ) -> Told:
        return await self._at("compile", ctx, run, files=files, path=path, base=base, wait_s=wait_s)

    async def run(
        self, ctx: Any, run: str = "", files: Files = None, path: str = "", base: str = "", wait_s: float = WAIT_S
    ) -> Told:
        return await self._at("run", ctx, run, files=files, path=path, base=base, wait_s=wait_s)

    async def code(
        self, ctx: Any, run: str = "", files: Files = None, path: str = "", base: str = "", wait_s: float = WAIT_S
    ) -> Told:
        return await self._at("code", ctx, run, files=files, path=path, base=base, wait_s=wait_s)

    async def tensor(
        self, ctx: Any, run: str = "", files: Files = None, path: str = "", base: str = "", at: str = "",
        wait_s: float = WAIT_S,
    ) -> Told:  # fmt: skip
        return await self._at("tensor", ctx, run, files=files, path=path, base=base, at=at, wait_s=wait_s)

    async def time(
        self, variants: list[dict[str, str | None]], ctx: Any, run: str = "", base: str = "", wait_s: float = WAIT_S
    ) -> Told:
        """`variants`: the files of each, over `base`, which is timed beside them."""
        open_run = self._desk.open_run(run)
        session = open_run.at_hand()
        if not 1 <= len(variants) < MOST_VARIANTS:
            raise UserError(
                f"{len(variants)} variants: give one to {MOST_VARIANTS - 1}, and a base to hold them against"
            )
        first = as_candidate(session, given(self._desk, session, None, path="", base=base)) if base else None
        found = [as_candidate(session, given(self._desk, session, files, path="", base=base)) for files in variants]
        return await self._use("time", ctx, open_run, candidates=(*((first,) if first else ()), *found), wait_s=wait_s)

    async def search(self, query: str, ctx: Any, run: str = "", wait_s: float = WAIT_S) -> Told:
        return await self._use("search", ctx, self._desk.open_run(run), text=query, wait_s=wait_s)

    async def read(self, name: str, ctx: Any, run: str = "", wait_s: float = WAIT_S) -> Told:
        return await self._use("read", ctx, self._desk.open_run(run), text=name, wait_s=wait_s)

    async def _at(
        self, tool: str, ctx: Any, run: str, *, files: Files, path: str, base: str, wait_s: float, at: str = ""
    ) -> Told:
        open_run = self._desk.open_run(run)
        session = open_run.at_hand()
        what = given(self._desk, session, files, path=path, base=base, alone=True)
        return await self._use(tool, ctx, open_run, candidates=(as_candidate(session, what),), text=at, wait_s=wait_s)

    async def _use(
        self, tool: str, ctx: Any, open_run: OpenRun, *, candidates: tuple[Candidate, ...] = (), text: str = "",
        wait_s: float,
    ) -> Told:  # fmt: skip
        def used(session: Session) -> Told:
            found = session.use(tool, candidates, text).outcome
            assert isinstance(found, ToolAnswer)
            return {"run": open_run.name, "tool": tool, "answer": found.text}

        return await answers.answer(open_run, open_run.ask(f"tool {tool} is at work", used), ctx, wait_s)
