"""What a coding agent can do here, tool by tool. The docstrings are what the agent reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..facts.candidate import Candidate
from ..facts.errors import UserError
from ..facts.move import Event, Try
from ..facts.outcome import Failure, Inspected
from ..facts.pattern import Recipe
from ..facts.problem import Precision, Target
from ..facts.profile import Question
from ..judge.build import candidate_of, load_candidate
from ..report import attempt_object, attempt_row, ended_object, profile_object, sweep_object, words
from ..run.matching import composed
from ..run.places import Places
from ..run.session import Session, Terms
from ..search.strategies.agent import attempts, library
from ..search.strategies.asking import shown, task_of
from ..search.strategies.prompts import render
from . import answers, config
from .agent_runs import AgentRuns, Told
from .reading import problem_of

WAIT_S = 45.0  # for what takes long: the clients of several agents give a call a minute
_LIBRARY = "library"
_MOST_REPORT = 30_000  # characters of a report that are sent along

GUIDE = """Tilewright judges replacements of PyTorch modules: are they right, and how fast are they?
1. open_problem; read_problem tells the module, its cases, the machine, the floor and what is judged; profile tells
   where the module's own time goes; read_skeletons shows what Tilewright's library makes of it.
2. submit a ModelNew with one change and one idea at a time. A refusal says what is wrong and where: mend that. What is
   accepted is timed against eager and torch.compile: a difference within the interval is noise. tune turns knobs.
   Between two submissions, compile, run, time, code and tensor look at what you have not submitted yet, and count as
   no try; search and read find notes and vetted kernels.
3. finish hands over the best and writes the report.
What takes long answers with "state": "working": call wait. Everything is kept: open_problem with the same folder goes
on after a crash. The judge's inputs are drawn in secret and anew each time; results that are remembered, work that is
not done, and clocks that are tampered with are found out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """The rules of the server: what its operator chose."""

    cache: Path
    target: Literal["auto", "cuda", "cpu"]
    terms: Terms  # of every run; its budget is what an agent may take at most
    say: Callable[[str], None]
    env: tuple[str, ...] = ()  # variables that the cells see

    def chosen(self) -> Target:
        """The target, or the one of this machine."""
        from ..edges.gpu.machine import default_target

        return default_target() if self.target == "auto" else self.target


class Tools:
    """The tools, over one desk. They raise UserError, and HarnessError for what is no fault of an agent's."""

    def __init__(self, agent_runs: AgentRuns, house: House) -> None:
        self._desk = agent_runs
        self._house = house

    @property
    def desk(self) -> AgentRuns:
        return self._desk

    async def open_problem(
        self, problem: str, ctx: Any, folder: str = "", budget: str = "", precision: Precision = "reference",
        mode: Literal["auto", "inference", "training"] = "auto", wait_s: float = WAIT_S,
    ) -> Told:  # fmt: skip
        """Open a problem (a Python file with Model, get_inputs and get_init_inputs) as a run of yours. The answer names
        the run, as all other tools need it. A `folder` that holds a run goes on with it, and with what it has spent;
        without one a new run begins. `budget`: what the run may take, as in "30m", "20tries", "device:10m" or
        "1h,20tries"; the operator's is the most. `precision`: a looser class that results may be in."""
        path = self._desk.inside(problem)
        place = self._desk.folder(folder, path)
        open_run = self._desk.run_at(place)
        if not open_run.new:
            await answers.settled(open_run, ctx, wait_s)
            if open_run.session is not None and open_run.session.context.problem.path != str(path):
                raise UserError(f"{open_run.name}: holds a run of another problem; choose another folder")
            return answers.overview(open_run) if open_run.job.done else answers.working(open_run)
        terms = config.within(self._house.terms, budget)
        agent = _name_of(ctx)

        def said(text: str) -> None:
            open_run.say(text)
            self._house.say(f"{open_run.name}: {text}")

        def session() -> Session:
            chosen = None if mode == "auto" else mode
            read = problem_of(
                path, target=self._house.chosen(), precision=precision, mode=chosen, env=self._house.env,
                warn=said,
            )  # fmt: skip
            places = Places(out=place, cache=self._house.cache)
            return Session(read, terms, places=places, agent=agent, say=said)

        job = open_run.open(session, lambda: answers.overview(open_run))
        return await answers.answer(open_run, job, ctx, wait_s)

    async def read_problem(self, run: str = "") -> str:
        """The module that is to be replaced, its cases, the machine with its measured rates, the floor (the time that
        the hardware can't beat), what limits this kind of work, and what is judged."""
        context = self._desk.open_run(run).at_hand().context
        judged = render("judged", target=context.problem.target, languages=context.languages)
        return render("task", **task_of(context)) + "\n\n" + judged

    async def read_skeletons(self, run: str = "", files: list[str] | None = None) -> str:
        """What Tilewright's library makes of the module without you: the fusions that it found, their knobs, what it
        left to torch and why, and the code. `files` names files of it to read instead, as the kernels in
        tilewright_kernels. submit with base="library" builds on it."""
        context = self._desk.open_run(run).at_hand().context
        recipe = library(context)
        made = composed(context, recipe)
        if files:
            texts = {f.path: f.text for f in (*made.files, *context.near)}
            if missing := [name[:80] for name in files[:20] if name not in texts]:
                raise UserError(f"no file {', '.join(missing)}; there are {', '.join(sorted(texts))}")
            if len(files) > len(texts):
                raise UserError(f"{len(files)} files: name each once")
            return "\n\n".join(f"FILE: {name}\n```\n{texts[name]}\n```" for name in files)
        points = {choice.pattern: words.settings(choice.point) for choice in recipe}
        patterns = [(m.case, p, points.get(p.id)) for m in context.matched for p in m.patterns]
        near = [f.path for f in context.near]
        return render(
            "skeletons",
            patterns=patterns,
            unmatched=context.matched,
            any=bool(recipe),
            near=near,
            **shown(made, whole=True),
        )

    async def attempts(self, run: str = "") -> Told:
        """All that you submitted, in short; the best so far; what is left of the budget."""
        open_run = self._desk.open_run(run)
        session = open_run.at_hand()
        rows = [attempt_row(e, number=n) for n, e in enumerate(attempts(session.events), start=1)]
        working = {} if open_run.job.done else {"working": open_run.job.what}
        return {"run": open_run.name, "attempts": rows, **answers.standing(session), **working}

    async def attempt(self, number: int, run: str = "", source: bool = False) -> Told:
        """The judge's verdict on an earlier attempt again, with its files where `source` asks for them (those of the
        library that it carries along by name: read_skeletons has their text)."""
        session = self._desk.open_run(run).at_hand()
        event = session.attempt(number)
        told = attempt_object(session.context, event, number=number)
        if source:
            seen = shown(candidate_in(session, event), whole=True)
            told |= {"files": {f.path: f.text for f in seen["files"]}, "unchanged": seen["hidden"]}
        return told

    async def submit(
        self, idea: str, ctx: Any, run: str = "", files: dict[str, str | None] | None = None, path: str = "",
        base: str = "", wait_s: float = WAIT_S,
    ) -> Told:  # fmt: skip
        """Have a candidate judged: built, checked on all cases and many kinds of inputs, timed. It is either `files`,
        paths and texts with a ModelNew in model.py, or a `path` to a file or folder on this machine. `base` fills in
        the files that are not given: the number of an attempt, or "library" (alone: judge what the library made);
        a text of null leaves a file of it out. `idea`: what you changed and what you expect of it, in one line.
        The answer is the judge's verdict, or "state": "working" after `wait_s` seconds: then call wait."""
        open_run = self._desk.open_run(run)
        session = open_run.at_hand()
        what = given(self._desk, session, files, path=path, base=base)
        if known := session.number_of(what):
            told = attempt_object(session.context, session.attempt(known), number=known)
            return told | {"note": f"this is attempt {known}, letter for letter: it was not judged again"}
        number = len(attempts(session.events)) + 1

        def judged(session: Session) -> Told:
            return answers.verdict(open_run, session, session.submit(what, idea), number)

        return await answers.answer(open_run, open_run.ask(f"attempt {number} is being judged", judged), ctx, wait_s)

    async def profile(
        self, ctx: Any, run: str = "", attempt: int = 0, question: Question = "auto", wait_s: float = WAIT_S
    ) -> Told:
        """Where the time of a call goes (kernels on a GPU, torch's operators on a CPU), what limits it, the evidence,
        and the three changes that are most likely to pay. `attempt` 0 is the module as it is, in eager mode. On a GPU
        with ncu, `question` says which counters of the longest kernel are wanted beside those that tell its limit:
        "memory", "compute", "latency"; "auto": what its limit asks for. Profiling slows a call; no verdict uses it."""
        open_run = self._desk.open_run(run)
        session = open_run.at_hand()
        move = session.attempt(attempt).move if attempt else None
        what = move.what if isinstance(move, Try) else None
        of = f"attempt {attempt}" if attempt else "the module"

        def profiled(session: Session) -> Told:
            found = session.inspect(what, question).outcome
            if isinstance(found, Failure):
                raise UserError(f"{of} could not be profiled: {found.reason}: {found.summary}")
            assert isinstance(found, Inspected)
            return {"run": open_run.name, "profile_of": of, **profile_object(found)}

        return await answers.answer(open_run, open_run.ask(f"{of} is being profiled", profiled), ctx, wait_s)

    async def tune(self, attempt: int, ctx: Any, run: str = "", wait_s: float = WAIT_S) -> Told:
        """Turn the knobs of an accepted attempt without you. Of your own code: lines such as
        `TILE = 64  # knob: 32, 64, 128` or `constexpr int TILE = 64;  // knob: 32, 64, 128`, each value judged as an
        attempt, what is faster beyond noise kept. Of what the library made: its kernels' settings, measured in turn."""
        open_run = self._desk.open_run(run)
        open_run.at_hand().attempt(attempt)

        def tuned(session: Session) -> Told:
            before = len(attempts(session.events))
            made = session.tune(attempt)
            after = list(enumerate(attempts(session.events), start=1))[before:]
            rows = [attempt_row(e, number=n) for n, e in after]
            swept = [m for m in made if not isinstance(m.move, Try)]
            told = {
                "run": open_run.name,
                "tuned": attempt,
                "attempts": rows,
                "sweeps": [sweep_object(m) for m in swept],
            }
            note = {} if made else {"note": "there is one setting worth measuring, the one in use"}
            return told | answers.standing(session) | note

        return await answers.answer(open_run, open_run.ask(f"attempt {attempt} is being tuned", tuned), ctx, wait_s)

    async def wait(self, ctx: Any, run: str = "", wait_s: float = WAIT_S) -> Told:
        """Wait for what is still going on in a run, and be told what came of it."""
        open_run = self._desk.open_run(run)
        return await answers.answer(open_run, open_run.job, ctx, wait_s)

    async def finish(self, why: str, ctx: Any, run: str = "", wait_s: float = WAIT_S) -> Told:
        """End the run: the best of it is handed over, if it is faster than eager beyond noise, and the report is
        written. `why`: why you stop, in one line."""
        open_run = self._desk.open_run(run)

        def finished(session: Session) -> Told:
            from .deliver import delivered

            result = session.finish(why)
            told = delivered(result, open_run.folder).summary
            report = open_run.folder / "report.md"
            open_run.leave()
            text = report.read_text(encoding="utf-8")
            places = {"candidate": str(result.candidate_dir), "report": str(report), "report_text": text[:_MOST_REPORT]}
            return {"run": open_run.name, "state": "ended", **ended_object(told), **places}

        return await answers.answer(open_run, open_run.ask("the run is being ended", finished), ctx, wait_s)


def given(
    agent_runs: AgentRuns, session: Session, files: dict[str, str | None] | None, *, path: str, base: str,
    alone: bool = False,
) -> Candidate | Recipe:  # fmt: skip
    """What an agent names: files over a base, a path, what the library makes of the module; `alone`: or an attempt."""
    if path and (files or base):
        raise UserError("give either a path, or files and a base")
    if path:
        return load_candidate(agent_runs.inside(path), session.context.problem)
    if base == _LIBRARY and not files:
        recipe = library(session.context)
        if not recipe:
            raise UserError("the library makes nothing of this module; read_skeletons says why")
        return recipe
    if not files and alone and base:
        found = _base(session, base)
        assert found is not None
        return found
    if not files:
        raise UserError('give files (paths and texts, with a ModelNew in model.py), a path, or base="library"')
    return candidate_of(files, _base(session, base))


def _base(session: Session, base: str) -> Candidate | None:
    if not base:
        return None
    if base == _LIBRARY:
        return composed(session.context, library(session.context))
    if not re.fullmatch("[0-9]{1,9}", base):
        raise UserError(f'base {base[:80]!r}: give the number of an attempt, or "library"')
    return candidate_in(session, session.attempt(int(base)))


def candidate_in(session: Session, event: Event) -> Candidate:
    """Of an attempt."""
    assert isinstance(event.move, Try)
    return as_candidate(session, event.move.what)


def as_candidate(session: Session, what: Candidate | Recipe) -> Candidate:
    return what if isinstance(what, Candidate) else composed(session.context, what)


def _name_of(ctx: Any) -> str:
    """As the client names itself; "an agent" where it does not."""
    said = getattr(getattr(ctx, "session", None), "client_params", None)
    known = getattr(said, "client_info", None)
    if known is None:
        return "an agent"
    return "".join(c for c in f"{known.name} {known.version}" if c.isprintable())[:80]
