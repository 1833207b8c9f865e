"""Bad input of every kind that comes in from outside, thousands of each: a value or one line may come of it.

    python benchmarks/fuzz.py [--count 7000] [--seed 0] [--kinds problems,orders] [--json RESULTS/cpu/fuzz.json]

Valid inputs are mutated (cut, doubled, spliced, numbers and words replaced by nasty ones), by a seed for each input, so
that `--only KIND:NUMBER` repeats a single one. All is done in this process, as the command line would do it, with what
judges and measures left out. A fault is a traceback, a second line on stderr, or ten seconds without an end.
"""

from __future__ import annotations

# ruff: noqa: E402 - some is found by the path that is set first
import argparse
import asyncio
import contextlib
import hashlib
import io
import json
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from fuzz_inputs import (
    CANDIDATES,
    COMMANDS,
    CONFIG,
    FLAGS,
    PROBLEMS,
    REPLIES,
    TASK,
    TOOLS,
    WORDS,
    as_bytes,
    mutated,
    mutated_tree,
)  # fmt: skip
from fuzz_worlds import World, journal, mcp, order, spoil, stubs
from results import about, write

from fakes.facts import MACHINE, context, timed
from fakes.prompts import ask
from tilewright.edges.bundle import Bundle, name_of
from tilewright.edges.ledger import Ledger
from tilewright.edges.models import open_model
from tilewright.edges.problems import read_problem
from tilewright.faces.cli import app
from tilewright.faces.deliver import redelivered
from tilewright.faces.exits import exit_code
from tilewright.facts import codec
from tilewright.facts.dialogue import ModelChoice
from tilewright.facts.errors import TilewrightError, UserError
from tilewright.facts.move import Event
from tilewright.facts.order import Order
from tilewright.facts.spent import Spent
from tilewright.judge.build import candidate_of, load_candidate
from tilewright.judge.verify import VerifiedSubject, verified
from tilewright.run.worker import Worker
from tilewright.search.strategies.asking import read
from tilewright.search.strategies.edits import edited

_LIMIT_S, _MOST_SHOWN = 10, 5

# ---- the kinds: each makes what one input does, in a folder of its own

Act = Callable[[random.Random, World], Any]


def problems(dice: random.Random, world: World) -> Any:
    if "texts" not in world.kept:
        world.kept["texts"] = [f.read_text() for f in sorted((ROOT / "examples/problems").glob("*.py"))[:12]]
    text = dice.choice((*world.kept["texts"], *PROBLEMS))
    (world.folder / "p.py").write_bytes(as_bytes(mutated(text, dice), dice))
    return read_problem(world.folder / "p.py", target=dice.choice(("cpu", "cuda")))


def configs(dice: random.Random, world: World) -> Any:
    text = json.dumps(mutated_tree(CONFIG, dice))
    (world.folder / "func_forward.py").write_text(TASK)
    text = mutated(text, dice) if dice.random() < 0.5 else text
    (world.folder / "config_forward.json").write_bytes(as_bytes(text, dice))
    return read_problem(world.folder, target="cpu")


def candidates(dice: random.Random, world: World) -> Any:
    text = mutated(dice.choice(CANDIDATES), dice)
    match dice.randrange(3):
        case 0:
            (world.folder / "c.py").write_bytes(as_bytes(text, dice))
            found = load_candidate(world.folder / "c.py")
        case 1:
            name = mutated("part.py", dice) if dice.random() < 0.5 else "part.py"
            found = candidate_of({"model.py": text, name: "x = 1\n"})
        case _:
            made = edited(candidate_of({"model.py": CANDIDATES[0]}), mutated(dice.choice(REPLIES), dice)).candidate
            if made is None:
                return None
            found = made
    known = context()
    return verified(found, VerifiedSubject(problem=known.problem, cases=known.cases, device="any"))


def replies(dice: random.Random, world: World) -> Any:
    """A letter in a mailbox, and what a strategy reads in it."""
    model = open_model(ModelChoice(name=f"mailbox:{world.folder}"), run="0" * 12, keys=lambda names: None, wait=False)
    model.announce([ask()])
    (letter,) = world.folder.glob("*.prompt.md")
    head = "---\nmodel: m\ninput_tokens: 5\noutput_tokens: 7\nprice_usd: 0.25\n---\n" if dice.random() < 0.7 else ""
    text = mutated(head + dice.choice(REPLIES), dice) + ("\nEND OF REPLY\n" if dice.random() < 0.8 else "")
    letter.with_name(letter.name.replace(".prompt.", ".reply.")).write_bytes(as_bytes(text, dice))
    reply = model.ask(ask())
    codec.read(codec.dumps(reply), type(reply))
    spent = Spent().after(Event(seq=0, move=ask(), outcome=reply, wall_s=1.0))
    assert spent.usd is None or 0 <= spent.usd < float("inf"), spent
    return read(reply, candidate_of({"model.py": CANDIDATES[0]}))


def journals(dice: random.Random, world: World) -> Any:
    path = world.folder / "run.db"
    path.write_bytes(journal(world))
    if dice.random() < 0.5:
        data = bytearray(path.read_bytes())
        for _ in range(dice.choice((1, 3, 20))):
            at = dice.randrange(len(data))
            data[at : at + dice.choice((1, 1, 4, 64))] = bytes(dice.randrange(256) for _ in range(dice.choice((1, 4))))
        path.write_bytes(data[: dice.randrange(len(data))] if dice.random() < 0.2 else data)
    else:
        spoil(path, dice)
    redelivered(world.folder)
    with Ledger(path) as ledger:
        return ledger.request(), ledger.context(), ledger.events()


def orders(dice: random.Random, world: World) -> Any:
    tree = mutated_tree(codec.to_plain(order()), dice)
    text = json.dumps(tree)
    body: bytes = (mutated(text, dice) if dice.random() < 0.4 else text).encode(errors="replace")
    place = world.folder / "orders" / f"{'0123456789ab'}-{dice.randrange(9999):04d}-0123456789abcdef.order"
    if dice.random() < 0.5:  # named after what it holds, if that is an order
        with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
            place = place.with_name(f"{name_of(codec.read(body.decode(), Order))}.order"[:200])
    place.parent.mkdir()
    digest = hashlib.sha256(place.name.encode(errors="replace") + b"\n" + body).hexdigest()
    with contextlib.suppress(OSError, ValueError):  # a name that can be none
        place.write_bytes(f"tilewright 0.1.0 {digest}\n".encode() + body if dice.random() < 0.9 else body)
    if dice.random() < 0.05:
        (place.parent / "0123456789ab-0001-0123456789abcdee.order").mkdir()

    class Bench(contextlib.nullcontext[Any]):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__(self)

        def held(self) -> tuple[()]:
            return ()

        def context(self, request: Any) -> Any:
            return context()

        def perform(self, known: Any, move: Any) -> Any:
            return timed(2.0)

    bundle, bench_of = Bundle(world.folder), cast(Any, Bench)
    with Worker(
        bundle, cache=world.folder, say=lambda text: None, bench_of=bench_of, machine_of=lambda target: MACHINE
    ) as worker:
        try:
            worker.prepare()
            return worker.visit()
        except UserError as error:  # whatever lies there, the others are served
            raise AssertionError("an order stopped the worker") from error


def messages(dice: random.Random, world: World) -> Any:
    """A call of a tool, as the SDK hands it on."""

    from mcp.server.mcpserver.exceptions import ToolError
    from pydantic import ValidationError

    server = mcp(world)
    name = dice.choice((*TOOLS, mutated("submit", dice)))
    given = dict(TOOLS.get(name, {}))
    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        key = dice.choice((*given, *TOOLS["submit"], "x", "run"))
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
    (world.folder / "p.py").write_text(PROBLEMS[0])
    (world.folder / "c.py").write_text(CANDIDATES[0])
    words = list(dice.choice(COMMANDS))
    for _ in range(dice.choice((0, 1, 2, 2, 4))):
        flag = dice.choice(FLAGS)
        usual = ("1", "1-9", "30m", "5usd,2Mtokens", "1,5,19-31", "cpu", "x", "mailbox:box", "catalog,oneshot")
        value = dice.choice((*WORDS, *usual))
        words += [flag] if dice.random() < 0.3 else [flag, mutated(value, dice) if dice.random() < 0.4 else value]
    if words and dice.random() < 0.3:
        words[dice.randrange(len(words))] = mutated(dice.choice(words), dice)
    if words[:1] in (["winners"], ["patterns"]) and {"merge", "export", "import", "page", "check"} & {*words[1:2]}:
        words[1] = "list"
    with stubs(world):
        return app([word.replace("\0", "") for word in words], standalone_mode=False)


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
        record = {"inputs": asked.count, "values": found.values, "lines": found.lines, "faults": len(found.faults)}
        print(f"{kind}: {record}, {found.seconds:.0f} s", flush=True)
        ends = {"".join(re.findall(r"line \d+|\w+Error.{0,40}", fault)[-3:]): fault for fault in found.faults}
        for fault in list(ends.values())[:_MOST_SHOWN]:
            print(fault[-1500:], file=sys.stderr)
        if asked.json:  # other kinds' counts stay
            kept = json.loads(asked.json.read_text())["kinds"] if asked.json.exists() else {}
            write(asked.json, {"kinds": kept | {kind: record | {"seconds": found.seconds} | about()}})
    return any(c.faults for c in counts.values())


if __name__ == "__main__":
    sys.exit(main())
