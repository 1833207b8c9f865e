"""The worlds that `fuzz.py` lets bad input into: orders, journals, a server for agents, commands without their work."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from fuzz_inputs import CANDIDATES, PROBLEMS, mutated, mutated_tree

from fakes.facts import PROBLEM, pattern
from fakes.facts import context as asked
from fakes.runs import IMPROVED, context
from tilewright.edges.ledger import Ledger
from tilewright.faces import tools
from tilewright.faces.agent_runs import AgentRuns
from tilewright.faces.agents import _server
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import UserError
from tilewright.facts.move import Try
from tilewright.facts.order import Job, Order
from tilewright.facts.run import Limits, Request, Timing
from tilewright.run.session import Session, Terms
from tilewright.search.strategies.spending import Spending


@dataclass(frozen=True, slots=True)
class World:
    """Where an input lives: a folder, which is also the current one, and what the kind prepared once."""

    folder: Path
    kept: dict[str, Any]


def order() -> Any:
    request = Request(run="0123456789ab", problem=PROBLEM, strategy="oneshot", seed=0, budget_s=9.0)
    what = Candidate(files=(SourceFile(path="model.py", text="x = 1\n"),))
    return Order(
        request=request, number=2, job=Job(context=asked(pattern("fused_0")), move=Try(what=what, why="first"))
    )


def journal(world: World) -> bytes:
    """A finished run's, as one file."""
    if "journal" not in world.kept:
        with tempfile.TemporaryDirectory() as folder:
            known = context()
            with Ledger(Path(folder) / "run.db") as ledger:
                request = Request(run="0" * 12, problem=known.problem, strategy="catalog", seed=0, budget_s=9.0)
                ledger.write(request)
                ledger.write(known)
                for event in IMPROVED:
                    ledger.append(event.move, event.outcome, wall_s=1.0)
            world.kept["journal"] = (Path(folder) / "run.db").read_bytes()
    found: bytes = world.kept["journal"]
    return found


def spoil(path: Path, dice: random.Random) -> None:
    """Change what a record or an event of the journal holds, or how its tables hang together."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT digest, body FROM text").fetchall()
        digest, body = dice.choice(rows)
        tree = json.dumps(mutated_tree(json.loads(body), dice))
        changes: list[tuple[str, tuple[Any, ...]]] = [
            ("UPDATE text SET body = ? WHERE digest = ?", (tree, digest)),
            ("UPDATE text SET body = ? WHERE digest = ?", (mutated(body, dice).encode(errors="replace").decode(),
            digest)),
            ("UPDATE text SET body = ? WHERE digest = ?", (bytes(dice.randrange(256) for _ in range(9)), digest)),
            ("DELETE FROM text WHERE digest = ?", (digest,)), ("DROP TABLE event", ()), ("DELETE FROM record", ()),
            (f"PRAGMA user_version = {dice.choice((0, 3, 5, 99))}", ()), ("DROP TABLE text", ()),
            ("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?)", (dice.choice((-1, 9, "x")), digest, digest, "x",
            "[" * 2000, None)),
        ]  # fmt: skip
        with contextlib.suppress(sqlite3.Error):
            db.execute(*dice.choice(changes[:2] * 4 + changes))
        db.commit()


def mcp(world: World) -> Any:
    """A server with one run open, whose moves are made without a judge."""
    if "server" in world.kept:
        return world.kept["server"]

    root = Path(tempfile.mkdtemp(prefix="tilewright-fuzz-"))
    (root / "p.py").write_text(PROBLEMS[0])

    class Still(Session):
        def __init__(self, *_: object, **named: object) -> None:
            if named:
                raise UserError("no run is made here")
            self.context, self.events, self.agent = context(), IMPROVED[:-1], "a"
            self.spending = Spending(self.context)

        def submit(self, what: Any, why: str) -> Any:
            return IMPROVED[1]

        def inspect(self, what: Any, question: Any = "auto") -> Any:
            raise UserError("no profile is made here")

        def tune(self, number: int) -> Any:
            self.attempt(number)
            return IMPROVED[:1]

        def finish(self, why: str) -> Any:
            raise UserError("no run is ended here")

        def close(self) -> None: ...

    made_of_any = Candidate(files=(SourceFile(path="model.py", text=CANDIDATES[0]),))
    vars(tools).update(Session=Still, composed=lambda known, recipe: made_of_any)
    vars(tools).update(_name_of=lambda ctx: "an agent")  # there is no connection
    desk = AgentRuns(root, root / "runs")
    terms = Terms(budget_s=60.0, limits=Limits(), timing=Timing())
    made = tools.Tools(desk, tools.House(cache=root, target="cpu", terms=terms, say=lambda _: None))
    seat = desk.run_at(desk.inside("runs/open"))
    seat.open(lambda: Still(), lambda: {"run": seat.name}).outcome.result(10)
    world.kept["server"] = _server(made)
    return world.kept["server"]


@contextlib.contextmanager
def stubs(world: World) -> Iterator[None]:
    """What judges, measures, serves or waits says in its place that it was come to."""

    def come_to(*_: object, **__: object) -> Any:
        raise UserError("it was come to")

    places = (
        "run.optimize.optimize", "run.optimize.resume", "run.optimize.judge_given", "run.tune.tune",
        "faces.benches.bench_folder",
        "faces.compares.run_strategies", "faces.audits.audited",
        "faces.discoveries.discovered",
        "faces.profiles.profiled", "faces.agents.serve", "faces.workers.served", "faces.tunings.prepared",
        "edges.toolchain.findings",
        "edges.gpu.machine.machines", "edges.gpu.machine.machine",
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(mock.patch(f"tilewright.{place}", come_to))
        stack.enter_context(mock.patch("tilewright.edges.gpu.machine.default_target", lambda: "cpu"))
        stack.enter_context(mock.patch.dict("os.environ", {"TILEWRIGHT_CACHE_DIR": str(world.folder / "cache")}))
        yield
