"""Journals of runs made small enough to be kept, and replayed from that: no GPU, no model, no judge.

    python benchmarks/journals.py pack RUNS/runs/cutegen benchmarks/journals/cutegen [--without SOURCES]
    python benchmarks/journals.py replay benchmarks/journals/*/*.jsonl.xz

A packed journal is a file (xz) of facts, a line each: the request, the context, the events. Of a judgement's samples
the fastest burst of each subject is kept: all that a strategy looks at. Left out are the text of the library's own
files, which lie beside every candidate, and the words of prompts: they follow from the rest, and may be bettered
without an end to the replay, which holds when what was asked, not how. The text of problem files in the folder
SOURCES, which are not ours to give away, is replaced by their names, everywhere alike, so that candidates still follow.
What a model's reply quotes of them is looked through by whoever commits it.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tilewright.edges.ledger import Ledger
from tilewright.facts import codec
from tilewright.facts.dialogue import Message, Prompt, ToolAnswer
from tilewright.facts.move import Ask, Event, Move, Outcome, Stop
from tilewright.facts.outcome import Samples, Timed
from tilewright.facts.run import Request, SearchContext
from tilewright.run.drive import Strategy, drive
from tilewright.search.strategies import STRATEGIES

Journal = tuple[Request, SearchContext, tuple[Event, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    packing = actions.add_parser("pack")
    packing.add_argument("runs", type=Path, help="a folder of runs, each with its run.db")
    packing.add_argument("to", type=Path)
    packing.add_argument("--without", type=Path, help="problem files whose text must not go along")
    replaying = actions.add_parser("replay")
    replaying.add_argument("files", type=Path, nargs="+")
    asked = parser.parse_args()
    if asked.action == "pack":
        hidden = sorted(asked.without.glob("*.py")) if asked.without else []
        for journal in sorted(asked.runs.glob("*/run.db")):
            made = pack(journal, asked.to, hidden)
            print(f"{made}: {made.stat().st_size / 1e3:.0f} kB")
    for file in asked.files if asked.action == "replay" else ():
        stop = replayed(unpacked(file))
        print(f"{file.name}: {stop.why if stop else 'was not driven to its end; replays as far as it went'}")


def pack(journal: Path, folder: Path, hidden: Sequence[Path] = ()) -> Path:
    """The journal in a file of its own in `folder`, named after its run's folder."""
    with Ledger(journal, readonly=True) as ledger:
        request, context, events = ledger.request(), ledger.context(), ledger.events()
    if request is None or context is None:
        raise SystemExit(f"{journal}: the run has not begun")
    facts = map(codec.to_plain, (request, context, *map(_slim, events)))
    lines = [json.dumps(_without_library(fact), separators=(",", ":")) for fact in facts]
    for path in hidden:
        inside = json.dumps(path.read_text(encoding="utf-8").strip())[1:-1]
        lines = [line.replace(inside, f"# {path.name}, which is not ours to give away") for line in lines]
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{journal.parent.name}.jsonl.xz"
    made.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))
    return made


def unpacked(file: Path) -> Journal:
    request, context, *events = (codec.loads(line) for line in lzma.decompress(file.read_bytes()).decode().splitlines())
    assert isinstance(request, Request) and isinstance(context, SearchContext)
    return request, context, tuple(events)


def replayed(journal: Journal, *, asked: Callable[[Ask], object] = lambda ask: None) -> Stop | None:
    """How the strategy ends on what the journal holds; None where the run went no further. JournalMismatch where it
    makes another move. `asked` is given each Ask, with the words that its prompt has in this version."""
    _, context, events = journal

    def missing(move: Move) -> Outcome:
        raise _Ended

    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "run.db") as ledger:
        for event in events:
            ledger.append(event.move, event.outcome, wall_s=event.wall_s, held=event.held)
        steps = _wordless(STRATEGIES[context.strategy](context), asked)
        try:
            stop = drive(steps, ledger=ledger, perform=missing, watch=lambda event: None)
        except _Ended:
            return None
    return stop if any(isinstance(event.move, Stop) for event in events) else None


class _Ended(Exception):
    """The journal holds no more."""


def _wordless(strategy: Strategy, asked: Callable[[Ask], object]) -> Strategy:
    """The same moves, without the words of prompts."""
    step = next(strategy)
    while True:
        for move in step if isinstance(step, tuple) else (step,):
            if isinstance(move, Ask):
                asked(move)
        bare = tuple(map(_bare, step)) if isinstance(step, tuple) else _bare(step)
        try:
            step = strategy.send((yield bare))
        except StopIteration:
            return


def _bare(move: Move) -> Move:
    """Without words; that a prompt brings answers of tools stays, since it is no call of its own."""
    if not isinstance(move, Ask):
        return move
    marks = (Message(role="user", text="", answers=(ToolAnswer(text=""),)),) if move.prompt.brings_answers else ()
    return replace(move, prompt=Prompt(system="", messages=marks))


def _without_library(fact: Any) -> Any:
    """Files of the library's own kernels, which lie beside every candidate, without their text."""
    if isinstance(fact, list):
        return [_without_library(value) for value in fact]
    if not isinstance(fact, dict):
        return fact
    if fact.get("$") == "SourceFile" and fact["path"].startswith("tilewright_kernels/"):
        return fact | {"text": ""}
    return {key: _without_library(value) for key, value in fact.items()}


def _slim(event: Event) -> Event:
    event = replace(event, move=_bare(event.move))
    timed = event.outcome
    if not isinstance(timed, Timed):
        return event
    phases = tuple(replace(phase, samples=()) for phase in timed.phases)
    return replace(event, outcome=replace(timed, samples=tuple(map(_fastest, timed.samples)), phases=phases))


def _fastest(samples: Samples) -> Samples:
    bursts = [burst for burst in samples.bursts_ns if burst]
    return replace(samples, bursts_ns=((median(min(bursts, key=median)),),) if bursts else ())


if __name__ == "__main__":
    main()
