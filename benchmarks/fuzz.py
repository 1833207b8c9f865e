"""Bad input of every kind that comes in from outside, thousands of each: nothing but a value or one line may come of it.

    python benchmarks/fuzz.py [--count 7000] [--seed 0] [--kinds problems,orders] [--json benchmarks/results/cpu/fuzz.json]

Valid inputs are mutated (cut, doubled, spliced, numbers and words replaced by nasty ones), by a seed for each input, so
that `--only KIND:NUMBER` repeats a single one. All is done in this process, as the command line would do it, with what
judges and measures left out. A fault is a traceback, a second line on stderr, or ten seconds without an end.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

_LIMIT_S = 10
_MOST_SHOWN = 5

WORDS = (
    "9**9**9", "10**4400", "-" * 5000 + "1", "'a'*10**12", "[0]*10**10", "1<<10**9", "range(10**12)", "(" * 300, "[" * 3000,
    "{" * 200, "\0", "\ud800", "\ufeff", "\u202e", "\x1b[31m", "nan", "inf", "-inf", "-1", "0", "1e999", "9" * 400, "9" * 5000,
    "None", "true", "null", "NaN", "Infinity", "''", '""', "\n", "\r\n", "\t", "'''", "\\", "%s", "{}", "../../x", "/dev/zero",
    "/dev/full", "a" * 5000, "é" * 300, "$", "*", ";", "import os", "lambda: 0", "f'{x!r:>{10**9}}'", "class ModelNew: pass",
    "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "```python", "FILE: model.py", "---", "END OF REPLY", "CASES = [{}]",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**63, 10**300, 1.5, float("nan"), float("inf"), -0.0, "", "x", "\0", "\ud800", "a" * 5000, [], {},
    [[]], {"": {}}, {"$": "Order"}, {"$": "Nobody"}, {"$": []}, [None] * 50, "9" * 400, "../..", "cpu", "cuda",
)  # fmt: skip


def mutated(text: str, dice: random.Random) -> str:
    """The text after a few changes."""
    for _ in range(dice.choice((1, 1, 2, 3, 6))):
        a, b = sorted((dice.randint(0, len(text)), dice.randint(0, len(text))))
        b = min(b, a + dice.choice((1, 5, 40, 10**6)))
        match dice.randrange(7):
            case 0:
                text = text[:a] + text[b:]
            case 1:
                text = text[:b] + text[a:b] * dice.choice((1, 2, 30)) + text[b:]
            case 2:
                text = text[:a] + dice.choice(WORDS) + text[b if dice.random() < 0.3 else a :]
            case 3:
                text = text[:a]
            case 4:
                text = text[:a] + chr(dice.choice((0, 7, 10, 34, 39, 92, 127, 255, 0xD800, 0xFFFF, 0x1F600))) + text[a:]
            case 5:
                text = _replaced(r"\d+(?:\.\d+)?", text, dice)
            case 6:
                text = _replaced(r"[A-Za-z_]{2,}", text, dice)
        text = text[:2_000_000]
    return text


def _replaced(pattern: str, text: str, dice: random.Random) -> str:
    """One of the places that a pattern matches holds something nasty in its place."""
    places = list(re.finditer(pattern, text))
    if not places:
        return text + dice.choice(WORDS)
    place = dice.choice(places)
    return text[: place.start()] + dice.choice(WORDS) + text[place.end() :]


def mutated_tree(tree: Any, dice: random.Random) -> Any:
    """A tree of JSON with something else in one of its places, or with a field that it had not."""
    if isinstance(tree, dict) and tree and dice.random() < 0.9:
        key = dice.choice(list(tree))
        if dice.random() < 0.1:
            return {k: v for k, v in tree.items() if k != key} | (
                {str(dice.choice(VALUES)): 1} if dice.random() < 0.5 else {}
            )
        return {**tree, key: mutated_tree(tree[key], dice)}
    if isinstance(tree, list) and tree and dice.random() < 0.9:
        at = dice.randrange(len(tree))
        return [*tree[:at], mutated_tree(tree[at], dice), *tree[at + 1 :]]
    if dice.random() < 0.05:
        return json.loads("[" * 400 + "]" * 400)
    return dice.choice(VALUES)


def as_bytes(text: str, dice: random.Random) -> bytes:
    encoding = dice.choice(("utf-8",) * 8 + ("utf-16", "latin-1"))
    return text.encode(encoding, errors=dice.choice(("surrogatepass", "replace", "ignore"))
                       if encoding != "latin-1" else "replace")  # fmt: skip


# ---- the kinds: each makes what one input does, in a folder of its own


@dataclass(frozen=True, slots=True)
class World:
    """Where an input lives: a folder, which is also the current one, and what the kind prepared once."""

    folder: Path
    kept: dict[str, Any]


Act = Callable[[random.Random, World], Any]


def problems(dice: random.Random, world: World) -> Any:
    from tilewright.stages.problems import read_problem

    texts = world.kept.setdefault(
        "texts", [f.read_text() for f in sorted((ROOT / "examples/problems").glob("*.py"))[:12]]
    )
    text = dice.choice((*texts, *_PROBLEMS))
    (world.folder / "p.py").write_bytes(as_bytes(mutated(text, dice), dice))
    return read_problem(world.folder / "p.py", target=dice.choice(("cpu", "cuda")))


def configs(dice: random.Random, world: World) -> Any:
    from tilewright.stages.problems import read_problem

    tree = mutated_tree(_CONFIG, dice)
    text = json.dumps(tree)
    (world.folder / "func_forward.py").write_text(_TASK)
    text = mutated(text, dice) if dice.random() < 0.5 else text
    (world.folder / "config_forward.json").write_bytes(as_bytes(text, dice))
    return read_problem(world.folder, target="cpu")


def candidates(dice: random.Random, world: World) -> Any:
    from fakes.facts import brief
    from tilewright.stages.build import candidate_of, load_candidate
    from tilewright.stages.verify import Subject, verified
    from tilewright.strategies.edits import edited

    text = mutated(dice.choice(_CANDIDATES), dice)
    match dice.randrange(3):
        case 0:
            (world.folder / "c.py").write_bytes(as_bytes(text, dice))
            found = load_candidate(world.folder / "c.py")
        case 1:
            name = mutated("part.py", dice) if dice.random() < 0.5 else "part.py"
            found = candidate_of({"model.py": text, name: "x = 1\n"})
        case _:
            made = edited(candidate_of({"model.py": _CANDIDATES[0]}), mutated(dice.choice(_REPLIES), dice)).candidate
            if made is None:
                return None
            found = made
    known = brief()
    return verified(found, Subject(problem=known.problem, cases=known.cases, device="any"))


def replies(dice: random.Random, world: World) -> Any:
    """A letter in a mailbox, and what a strategy reads in it."""
    from fakes.prompts import ask
    from tilewright.edges.llm import open_model
    from tilewright.facts import codec
    from tilewright.facts.dialogue import ModelChoice
    from tilewright.facts.move import Event
    from tilewright.facts.spent import Spent
    from tilewright.stages.build import candidate_of
    from tilewright.strategies.asking import read

    model = open_model(ModelChoice(name=f"mailbox:{world.folder}"), run="0" * 12, keys=lambda names: None, wait=False)
    model.announce([ask()])
    (letter,) = world.folder.glob("*.prompt.md")
    head = "---\nmodel: m\ninput_tokens: 5\noutput_tokens: 7\nprice_usd: 0.25\n---\n" if dice.random() < 0.7 else ""
    text = mutated(head + dice.choice(_REPLIES), dice) + ("\nEND OF REPLY\n" if dice.random() < 0.8 else "")
    letter.with_name(letter.name.replace(".prompt.", ".reply.")).write_bytes(as_bytes(text, dice))
    reply = model.ask(ask())
    codec.read(codec.dumps(reply), type(reply))
    spent = Spent().after(Event(seq=0, move=ask(), outcome=reply, wall_s=1.0))
    assert spent.usd is None or 0 <= spent.usd < float("inf"), spent
    return read(reply, candidate_of({"model.py": _CANDIDATES[0]}))


def journals(dice: random.Random, world: World) -> Any:
    from tilewright.edges.ledger import Ledger
    from tilewright.faces.deliver import redelivered

    path = world.folder / "run.db"
    path.write_bytes(_journal(world))
    if dice.random() < 0.5:
        data = bytearray(path.read_bytes())
        for _ in range(dice.choice((1, 3, 20))):
            at = dice.randrange(len(data))
            data[at : at + dice.choice((1, 1, 4, 64))] = bytes(dice.randrange(256) for _ in range(dice.choice((1, 4))))
        path.write_bytes(data[: dice.randrange(len(data))] if dice.random() < 0.2 else data)
    else:
        _spoil(path, dice)
    redelivered(world.folder)
    with Ledger(path) as ledger:
        return ledger.request(), ledger.brief(), ledger.events()


def orders(dice: random.Random, world: World) -> Any:
    import hashlib

    from fakes.facts import MACHINE, brief, timed
    from tilewright.edges.bundle import Bundle
    from tilewright.facts import codec
    from tilewright.flow.worker import Worker

    tree = mutated_tree(codec.to_plain(_order()), dice)
    body = json.dumps(tree)
    body = (mutated(body, dice) if dice.random() < 0.4 else body).encode(errors="replace")
    place = world.folder / "orders" / f"{'0123456789ab'}-{dice.randrange(9999):04d}-0123456789abcdef.order"
    if dice.random() < 0.5:  # named after what it holds, if that is an order
        with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
            from tilewright.edges.bundle import name_of
            from tilewright.facts.order import Order

            place = place.with_name(f"{name_of(codec.read(body.decode(), Order))}.order"[:200])
    place.parent.mkdir()
    digest = hashlib.sha256(place.name.encode(errors="replace") + b"\n" + body).hexdigest()
    with contextlib.suppress(OSError, ValueError):  # a name that can be none
        place.write_bytes(f"tilewright 0.1.0 {digest}\n".encode() + body if dice.random() < 0.9 else body)
    if dice.random() < 0.05:
        (place.parent / "0123456789ab-0001-0123456789abcdee.order").mkdir()

    class Bench:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...
        def held(self) -> tuple[()]:
            return ()

        def brief(self, request: Any) -> Any:
            return brief()

        def perform(self, known: Any, move: Any) -> Any:
            return timed(2.0)

    def bench(*given: object, **named: object) -> Any:
        return Bench()

    with Worker(Bundle(world.folder), cache=world.folder, say=lambda text: None, bench_of=bench,
                machine_of=lambda target: MACHINE) as worker:  # fmt: skip
        worker.prepare()
        return worker.visit()


def messages(dice: random.Random, world: World) -> Any:
    """A call of a tool, as the SDK hands it on."""
    import asyncio

    from mcp.server.mcpserver.exceptions import ToolError
    from pydantic import ValidationError

    from tilewright.facts.errors import TilewrightError, UserError

    server = _mcp(world)
    name = dice.choice((*_TOOLS, mutated("submit", dice)))
    given = dict(_TOOLS.get(name, {}))
    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        key = dice.choice((*given, *_TOOLS["submit"], "x", "run"))
        old = given.get(key, "x")
        given[key] = mutated(old, dice) if isinstance(old, str) and dice.random() < 0.5 else mutated_tree(old, dice)
    given.pop("wait_s", None) if dice.random() < 0.5 else None
    try:
        return asyncio.run(server.call_tool(name, given))
    except ToolError as error:
        cause: BaseException | None = error.__cause__
        while isinstance(cause, ToolError):
            cause = cause.__cause__
        if cause is None or isinstance(cause, TilewrightError | ValidationError):
            raise UserError(str(error)[:200]) from None
        raise cause from None


def commands(dice: random.Random, world: World) -> Any:
    from tilewright.faces.cli import app

    (world.folder / "p.py").write_text(_PROBLEMS[0])
    (world.folder / "c.py").write_text(_CANDIDATES[0])
    words = list(dice.choice(_COMMANDS))
    for _ in range(dice.choice((0, 1, 2, 2, 4))):
        flag = dice.choice(_FLAGS)
        value = dice.choice(
            (*WORDS, "1", "1-9", "30m", "5usd,2Mtokens", "1,5,19-31", "cpu", "x", "mailbox:box", "catalog,oneshot")
        )
        words += [flag] if dice.random() < 0.3 else [flag, mutated(value, dice) if dice.random() < 0.4 else value]
    if words and dice.random() < 0.3:
        words[dice.randrange(len(words))] = mutated(dice.choice(words), dice)
    if (
        words
        and words[0] in ("winners", "patterns")
        and {"merge", "export", "import", "page", "check"} & set(words[1:2])
    ):
        words[1] = "list"
    with _stubs(world):
        return app([word.replace("\0", "") for word in words], standalone_mode=False)


# ---- valid inputs

_PROBLEMS = (
    'import torch\nN = 4\nM = N * 2 + 1\nCASES = [{"rows": 64, "n": M}, dict(rows=3, n=N ** 2)]\nCPU_CASES = [{"rows": 2 << 3}]\n'
    'MODE = "training"\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n\n\n'
    "def get_inputs(**k): ...\n\n\ndef get_init_inputs(**k): ...\n",
    "class Model: ...\nA = [1, 2]\nB = {'x': A * 3, 'y': -1.5}\nCASES: list = [B]\nfrom m import get_inputs, get_init_inputs\n",
)
_TASK = "class Model:\n    def __init__(self, n): ...\n\n\ndef get_inputs(rows, n): ...\n"
_CONFIG: Any = {
    "single_init_configs": [{"n": 3}], "single_input_configs": [{"rows": 64}], "single_shared_configs": [{}],
    "multi_init_configs": [{"n": 3}, {"n": 9}], "multi_input_configs": [{"rows": 5}], "multi_shared_configs": [{}],
}  # fmt: skip
_CANDIDATES = (
    "import torch\nfrom torch import nn\n\nTILE = 64  # knob: 32, 64, 128\n\n\nclass ModelNew(nn.Module):\n"
    "    def __init__(self, n):\n        super().__init__()\n        self.w = nn.Parameter(torch.ones(n))\n\n"
    "    def forward(self, x):\n        y = x.to(torch.bfloat16) @ self.w\n        return torch.where(y > 0, y, 0 * y).float()\n",
    'import torch\nfrom torch.utils.cpp_extension import load_inline\nsource = """\n__global__ void k(float* x, int n) {\n'
    '  int i = blockIdx.x * 256 + threadIdx.x;\n  if (i < n) x[i + 1] = 2;\n}\n"""\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n',
)
_REPLIES = (
    "I think that it is bound by memory.\n\nFILE: model.py\n```python\n" + _CANDIDATES[0] + "```\n",
    "IDEA: fewer bytes\nmodel.py\n<<<<<<< SEARCH\nTILE = 64  # knob: 32, 64, 128\n=======\nTILE = 128\n>>>>>>> REPLACE\n",
    '```json\n[{"nodes": ["a", "b"], "why": "x"}]\n```\n',
)  # fmt: skip
_TOOLS: dict[str, dict[str, Any]] = {
    "open_problem": {"problem": "p.py", "folder": "runs/x", "budget": "30m", "precision": "reference", "mode": "auto", "wait_s": 1.0},
    "read_problem": {"run": "runs/open"}, "read_skeletons": {"run": "", "files": ["model.py"]}, "attempts": {"run": "runs/open"},
    "attempt": {"number": 1, "run": "runs/open", "source": True}, "finish": {"why": "done", "run": "runs/none"},
    "submit": {"idea": "i", "run": "runs/open", "files": {"model.py": _CANDIDATES[0]}, "path": "", "base": "1", "wait_s": 1.0},
    "profile": {"run": "runs/open", "attempt": 1, "question": "auto", "wait_s": 1.0}, "wait": {"run": "runs/open", "wait_s": 0.5},
    "tune": {"attempt": 1, "run": "runs/open", "wait_s": 1.0},
}  # fmt: skip
_COMMANDS = (
    ["optimize", "p.py", "--target", "cpu"], ["evaluate", "p.py", "c.py", "--target", "cpu"], ["resume", "run"], ["report", "run"],
    ["bench", ".", "--target", "cpu"], ["compare", "run"], ["compare", "p.py", "--strategies", "catalog"], ["profile", "p.py"],
    ["audit", "p.py"], ["audit", "."], ["discover", "p.py"], ["tune", "p.py", "--budget", "5m"], ["winners", "list"],
    ["patterns", "list"], ["patterns", "search", "softmax"], ["patterns", "show", "x"], ["worker", "box"], ["mcp"], ["doctor"], [],
)  # fmt: skip
_FLAGS = (
    "--target", "--mode", "--precision", "--sanitize", "--no-sanitize", "--out", "--budget", "--timing", "--no-compile",
    "--no-algebra", "--strategy", "--without", "--model", "--base-url", "--effort", "--evaluator", "--no-wait", "--seed", "--json",
    "--only", "--jobs", "--devices", "--by", "--strategies", "--repeats", "--svg", "--trials", "--ahead", "--http", "--root",
    "--runs", "--watch", "--question", "--version", "--help", "--env", "--", "-x",
)  # fmt: skip


def _order() -> Any:
    from fakes.facts import PROBLEM, brief, pattern
    from tilewright.facts.candidate import Candidate, SourceFile
    from tilewright.facts.move import Try
    from tilewright.facts.order import Job, Order
    from tilewright.facts.run import Request

    request = Request(run="0123456789ab", problem=PROBLEM, strategy="oneshot", seed=0, budget_s=9.0)
    what = Candidate(files=(SourceFile(path="model.py", text="x = 1\n"),))
    return Order(request=request, number=2, job=Job(brief=brief(pattern("fused_0")), move=Try(what=what, why="first")))


def _journal(world: World) -> bytes:
    """A finished run's, as one file."""
    if "journal" not in world.kept:
        from fakes.runs import IMPROVED, brief
        from tilewright.edges.ledger import Ledger
        from tilewright.facts.run import Request

        with tempfile.TemporaryDirectory() as folder:
            known = brief()
            with Ledger(Path(folder) / "run.db") as ledger:
                request = Request(run="0" * 12, problem=known.problem, strategy="catalog", seed=0, budget_s=9.0)
                ledger.write(request)
                ledger.write(known)
                for event in IMPROVED:
                    ledger.append(event.move, event.outcome, wall_s=1.0)
            world.kept["journal"] = (Path(folder) / "run.db").read_bytes()
    found: bytes = world.kept["journal"]
    return found


def _spoil(path: Path, dice: random.Random) -> None:
    """Change what a record or an event of the journal holds, or how its tables hang together."""
    import sqlite3

    with contextlib.closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT digest, body FROM text").fetchall()
        digest, body = dice.choice(rows)
        tree = json.dumps(mutated_tree(json.loads(body), dice))
        changes: list[tuple[str, tuple[Any, ...]]] = [
            ("UPDATE text SET body = ? WHERE digest = ?", (tree, digest)),
            ("UPDATE text SET body = ? WHERE digest = ?", (mutated(body, dice).encode(errors="replace").decode(), digest)),
            ("UPDATE text SET body = ? WHERE digest = ?", (bytes(dice.randrange(256) for _ in range(9)), digest)),
            ("DELETE FROM text WHERE digest = ?", (digest,)), ("DROP TABLE event", ()), ("DELETE FROM record", ()),
            (f"PRAGMA user_version = {dice.choice((0, 3, 5, 99))}", ()), ("DROP TABLE text", ()),
            ("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?)", (dice.choice((-1, 9, "x")), digest, digest, "x", "[" * 2000, None)),
        ]  # fmt: skip
        with contextlib.suppress(sqlite3.Error):
            db.execute(*dice.choice(changes[:2] * 4 + changes))
        db.commit()


def _mcp(world: World) -> Any:
    """A server with one run open, whose moves are made without a judge."""
    if "server" in world.kept:
        return world.kept["server"]
    from fakes.runs import IMPROVED, brief
    from tilewright.faces import tools
    from tilewright.faces.agents import _server
    from tilewright.faces.desk import Desk
    from tilewright.facts.candidate import Candidate, SourceFile
    from tilewright.facts.errors import UserError
    from tilewright.facts.run import Limits, Timing
    from tilewright.flow.session import Session, Terms
    from tilewright.strategies.spending import Spending

    root = Path(tempfile.mkdtemp(prefix="tilewright-fuzz-"))
    (root / "p.py").write_text(_PROBLEMS[0])

    class Still(Session):
        def __init__(self, *_: object, **named: object) -> None:
            if named:
                raise UserError("no run is made here")
            self.brief, self.events, self.agent = brief(), IMPROVED[:-1], "a"
            self._spending = Spending(self.brief)

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

    tools.Session = Still  # type: ignore[misc]
    tools.composed = lambda known, recipe: Candidate(files=(SourceFile(path="model.py", text=_CANDIDATES[0]),))
    tools._name_of = lambda ctx: "an agent"  # there is no connection
    desk = Desk(root, root / "runs")
    terms = Terms(budget_s=60.0, limits=Limits(), timing=Timing())
    made = tools.Tools(desk, tools.House(cache=root, target="cpu", terms=terms, say=lambda _: None))
    seat = desk.seat_at(desk.inside("runs/open"))
    seat.open(lambda: Still(), lambda: {"run": seat.name}).outcome.result(10)
    world.kept["server"] = _server(made)
    return world.kept["server"]


@contextlib.contextmanager
def _stubs(world: World) -> Iterator[None]:
    """What judges, measures, serves or waits says in its place that it was come to."""
    from unittest import mock

    from tilewright.facts.errors import UserError

    def come_to(*_: object, **__: object) -> Any:
        raise UserError("it was come to")

    places = (
        "flow.optimize.optimize", "flow.optimize.resume", "flow.optimize.judge_given", "flow.tune.tune", "faces.benches.bench_folder",
        "faces.compares.run_strategies", "faces.audits.audit_file", "faces.audits.audit_folder", "faces.discoveries.discovered",
        "faces.profiles.profiled", "faces.agents.serve", "faces.workers.served", "faces.tunings.prepared", "edges.toolchain.findings",
        "edges.gpu.machine.machines", "edges.gpu.machine.machine",
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(mock.patch(f"tilewright.{place}", come_to))
        stack.enter_context(mock.patch("tilewright.edges.gpu.machine.default_target", lambda: "cpu"))
        stack.enter_context(mock.patch.dict("os.environ", {"TILEWRIGHT_CACHE_DIR": str(world.folder / "cache")}))
        yield


KINDS: dict[str, Act] = {
    "problems": problems, "configs": configs, "commands": commands, "journals": journals, "replies": replies,
    "candidates": candidates, "messages": messages, "orders": orders,
}  # fmt: skip


# ---- running them


@dataclass(slots=True)
class Count:
    """What became of the inputs of a kind: values, lines, and faults with the numbers of their inputs."""

    values: int = 0
    lines: int = 0
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0


class _Endless(Exception):
    """An input took too long."""


def tried(kind: str, number: int, *, seed: int, kept: dict[str, Any]) -> tuple[int, str]:
    """The exit code of one input, and the fault, if any."""
    from tilewright.faces.exits import exit_code

    def stop(*_: object) -> None:
        raise _Endless

    dice = random.Random(f"{seed} {kind} {number}")
    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, stop)
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-", ignore_cleanup_errors=True) as folder:
        world = World(Path(folder), kept)
        try:
            signal.alarm(_LIMIT_S)
            with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = exit_code(lambda: KINDS[kind](dice, world))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return 3, "".join(traceback.format_exception(error))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    said = err.getvalue()
    if "Traceback" in said or "internal error" in said:
        return code, said
    if len(said.strip().splitlines()) > 1:
        return code, f"more than a line: {said}"
    return code, ""


def counted(kind: str, numbers: range, *, seed: int) -> Count:
    found, kept, start = Count(), dict[str, Any](), time.monotonic()
    for number in numbers:
        code, fault = tried(kind, number, seed=seed, kept=kept)
        if fault:
            found.faults.append(f"{kind}:{number}: {fault.strip()}")
        elif code == 0:
            found.values += 1
        else:
            found.lines += 1
    found.seconds = time.monotonic() - start
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=7000, help="inputs of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--only", default="", help="KIND:NUMBER: this one input, with its whole fault")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.only:
        kind, _, number = asked.only.partition(":")
        print(*tried(kind, int(number), seed=asked.seed, kept={}))
        return 0
    counts: dict[str, Count] = {}
    for kind in asked.kinds.split(","):
        counts[kind] = found = counted(kind, range(asked.count), seed=asked.seed)
        print(
            f"{kind}: {found.values} values, {found.lines} lines, {len(found.faults)} faults, {found.seconds:.0f} s",
            flush=True,
        )
        ends = {"".join(re.findall(r"line \d+|\w+Error.{0,40}", fault)[-3:]): fault for fault in found.faults}
        for fault in list(ends.values())[:_MOST_SHOWN]:
            print(fault[-1500:], file=sys.stderr)
    if asked.json:
        from tilewright.faces.deliver import commit

        kinds = {k: {"inputs": asked.count, "values": c.values, "lines": c.lines, "faults": len(c.faults),
                     "seconds": round(c.seconds, 1)} for k, c in counts.items()}  # fmt: skip
        told = {"command": " ".join(["python", "benchmarks/fuzz.py", *sys.argv[1:]]), "commit": commit(),
                "date": date.today().isoformat(), "python": sys.version.split()[0], "kinds": kinds}  # fmt: skip
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    return any(c.faults for c in counts.values())


if __name__ == "__main__":
    sys.exit(main())
