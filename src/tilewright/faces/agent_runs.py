"""The runs that agents have open, each in a thread of its own: what takes long goes on while nobody waits for it."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..facts.errors import UserError
from ..run.session import Session

Told = dict[str, Any]  # what a tool answers, as JSON
_LEAVING_S = 5.0  # for a run that is at rest to end its cells


@dataclass(slots=True, kw_only=True)
class AgentJob:
    """What an agent asked for and may still be waiting for; `lines` say how far it is."""

    what: str
    act: Callable[[], Told]
    lines: list[str] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)
    outcome: Future[Told] = field(default_factory=Future)

    @property
    def done(self) -> bool:
        return self.outcome.done()


class OpenRun:
    """One open run and its thread. `job` is what was asked for last; one is asked for at a time."""

    def __init__(self, name: str, folder: Path, *, follows: OpenRun | None = None) -> None:
        self.name = name
        self.folder = folder
        self.session: Session | None = None
        self.job = AgentJob(what="opening", act=dict)
        self._follows = follows  # the journal is free when that one's thread has ended
        self._left = False
        self._jobs: queue.Queue[AgentJob | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def open(self, session: Callable[[], Session], overview: Callable[[], Told]) -> AgentJob:
        """Start the thread and open the run in it."""

        def act() -> Told:
            if self._follows is not None:
                self._follows._thread.join()
                self._follows = None
            self.session = session()
            return overview()

        self._thread.start()
        return self._put(AgentJob(what="the problem is being opened", act=act))

    def ask(self, what: str, act: Callable[[Session], Told]) -> AgentJob:
        """Have something done in the run's thread. Raises UserError while something else is being done."""
        session = self.at_hand()
        if not self.alive:
            raise UserError(f"{self.name}: this run was finished; open another folder to go on")
        if not self.job.done:
            raise UserError(f"{self.name}: {self.job.what}; call wait for what comes of it, then go on")
        return self._put(AgentJob(what=what, act=lambda: act(session)))

    def at_hand(self) -> Session:
        """The run, once it is open."""
        if self.session is None:
            if self.job.done:
                self.job.outcome.result()  # raises what was wrong
            raise UserError(f"{self.name}: {self.job.what}; call wait until that is done")
        return self.session

    def say(self, text: str) -> None:
        self.job.lines.append(text)

    @property
    def new(self) -> bool:
        """Whether nothing was asked for yet."""
        return self._thread.ident is None

    @property
    def alive(self) -> bool:
        """Whether more can be asked for."""
        return self._thread.is_alive() and not self._left

    def leave(self) -> None:
        """Let the thread end when it has nothing more to do."""
        self._left = True
        self._jobs.put(None)

    def close(self) -> None:
        """Leave; nothing is kept of what is still going on."""
        if self.session is not None:
            self.session.abandon()
        self.leave()
        if self.job.done and self._thread.is_alive():
            self._thread.join(_LEAVING_S)

    def _put(self, job: AgentJob) -> AgentJob:
        self.job = job
        self._jobs.put(job)
        return job

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    job.outcome.set_result(job.act())
                except Exception as error:  # told to whoever waits
                    job.outcome.set_exception(error)
                if self.session is None:
                    return
        finally:
            if self.session is not None:
                self.session.close()


class AgentRuns:
    """All seats, by the folders of their runs. `root` is where agents may name files; new runs lie in `runs`."""

    def __init__(self, root: Path, runs: Path) -> None:
        self.root, self.runs = root.resolve(), runs.resolve()
        self._seats: dict[Path, OpenRun] = {}

    def inside(self, path: str) -> Path:
        """The place that an agent names. Raises UserError where it lies outside, or can be no place."""
        found = self._place(path)
        if not (found.is_relative_to(self.root) or found.is_relative_to(self.runs)):
            raise UserError(
                f"{path}: lies outside {self.root}, where this server works; name a place in there, or have the server "
                "started with another --root"
            )
        return found

    def _place(self, path: str) -> Path:
        try:
            found = (self.root / path).resolve()
            os.stat(found)  # raises for what can't be a name
        except (FileNotFoundError, NotADirectoryError):
            return found
        except (OSError, ValueError, RuntimeError) as error:  # too long, with a NUL in it, a loop of links
            why = getattr(error, "strerror", None) or str(error)
            raise UserError(f"{path[:80]!r}: can't be a place ({why})") from None
        return found

    def folder(self, wanted: str, problem: Path) -> Path:
        """The run's folder: the one that is named, or a new one."""
        if wanted:
            return self.inside(wanted)
        number = 1
        while (folder := self.runs / f"{problem.stem[:80]}-agent-{number}").exists() or folder in self._seats:
            number += 1
        return folder

    def run_at(self, folder: Path) -> OpenRun:
        """The seat of a run; where that is over, or there was none, a new one, to be opened."""
        found = self._seats.get(folder)
        if found is not None and (found.alive or found.new):
            return found
        name = str(folder.relative_to(self.root)) if folder.is_relative_to(self.root) else str(folder)
        self._seats[folder] = OpenRun(name, folder, follows=found)
        return self._seats[folder]

    def open_run(self, run: str) -> OpenRun:
        """The seat that an agent means; "" means the only one."""
        known = [open_run for open_run in self._seats.values() if open_run.alive or open_run.session is not None]
        if not run and len(known) == 1:
            return known[0]
        open_run = self._seats.get(self._place(run)) if run else None
        if open_run is None:
            have = f"open are {', '.join(sorted(s.name for s in known))}" if known else "none is open"
            raise UserError(f"run {run[:80]!r}: {have}; open one with open_problem, naming its folder to go on with it")
        return open_run

    def close(self) -> None:
        for open_run in self._seats.values():
            open_run.close()
