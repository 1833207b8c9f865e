"""Runs of the sweep: every candidate on every cell and seed, in some processes, from where it was stopped."""

from __future__ import annotations

import gc
import json
import multiprocessing
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tilewright.judge.check.plan import BOUNDARY, BRIEF, plan

from ..results import write
from .candidates import DISHONEST, HONEST, Candidate, Given
from .cells import Cell
from .judge import Bench

_ENOUGH_TURNED, _IN_VAIN = 64, 4  # as in judge.check.trials
_SAMPLED = 4  # trials that honest candidates meet, beside those of results that jump
_CHUNKS = {64: 20, 4096: 10, 1_000_000: 4}  # seeds that a process takes at a time, by size
_MOST_WORDS = 3  # wrong verdicts that are told, by candidate


@dataclass(frozen=True, slots=True)
class Task:
    cell: Cell
    seeds: tuple[int, ...]
    device: str
    beside_turns: bool = True


@dataclass(slots=True)
class Tally:
    """Of one cell: seeds that were run, how many of them each candidate was accepted at, and what was said of wrong
    verdicts."""

    seeds: list[int] = field(default_factory=list)
    accepted: dict[str, int] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        self.seeds = sorted({*self.seeds, *other.seeds})
        self.seconds += other.seconds
        for name, count in other.accepted.items():
            self.accepted[name] = self.accepted.get(name, 0) + count
        for name, words in other.words.items():
            self.words[name] = (self.words.get(name, []) + words)[:_MOST_WORDS]

    def wrong(self) -> dict[str, int]:
        """How many verdicts are wrong, by candidate, where any is."""
        honest = {n: len(self.seeds) - self.accepted.get(n, 0) for n in HONEST}
        found = honest | {n: self.accepted.get(n, 0) for n in DISHONEST}
        return {n: count for n, count in found.items() if count}


def run(task: Task) -> Tally:
    """All candidates on one cell and these seeds."""
    torch.set_num_threads(1)
    started = time.monotonic()
    tally, bench = Tally(), Bench(task.cell.problem, task.device)
    gc.collect()
    gc.freeze()  # the reference collects garbage at every construction
    for seed in task.seeds:
        refused = _refused(task, bench, seed)
        tally.seeds.append(seed)
        for name in (*HONEST, *DISHONEST):
            tally.accepted[name] = tally.accepted.get(name, 0) + (name not in refused)
            if (name in refused) == (name in HONEST):
                said = f"seed {seed}: {refused.get(name, 'accepted in all trials')}"
                tally.words[name] = [*tally.words.get(name, []), said][:_MOST_WORDS]
    tally.seconds = time.monotonic() - started
    return tally


def _refused(task: Task, bench: Bench, seed: int) -> dict[str, str]:
    """Who is refused in some trial, and what is said of it there. Trials are those of a check. Nobody is tried again
    who was refused once, and honest candidates are tried in some, which other seeds choose otherwise."""
    rng = random.Random(seed)
    trials = plan(0, case_bytes=4 * task.cell.size, has_floats=True, redraws=True, rng=rng, steps=task.beside_turns)
    others = [t for t in trials if t.family not in (BOUNDARY, BRIEF)]
    sample = {id(t) for t in rng.sample(others, _SAMPLED)} | {id(t) for t in trials if t not in others}
    bench.construct(seed)
    before = bench.run(bench.reference.inputs(trials[1].seed, "own")[1])
    refused: dict[str, str] = {}
    beside, turned = 0, 0
    for planned in trials:
        everybody = {**HONEST, **DISHONEST} if id(planned) in sample else DISHONEST
        left = {name: c for name, c in everybody.items() if name not in refused}
        enough = turned >= _ENOUGH_TURNED or (turned == 0 and beside >= _IN_VAIN)
        if not left or (planned.family == BOUNDARY and enough):
            continue
        trial = bench.trial(planned, beside)
        if planned.family == BOUNDARY:
            beside, turned = beside + 1, turned + (trial.turned if trial is not None else 0)
        if trial is None:
            continue
        (x, opened), (weight, scale) = trial.inputs, bench.state
        given = Given(x, opened, weight, scale, before)
        for name, candidate in left.items():
            found = trial.verdict(_called(candidate, task.cell, given))
            if not found.accepted:
                refused[name] = f"{planned.family}: {found.why}"
    return refused


def _called(candidate: Candidate, cell: Cell, given: Given) -> torch.Tensor:
    with torch.no_grad():
        return candidate(cell, given)


class Results:
    """The tallies by cell, and their file."""

    def __init__(self, path: Path | None, head: dict[str, object]) -> None:
        self._path, self._head = path, head
        self.tallies: dict[str, Tally] = {}
        if path is not None and path.exists():
            held = json.loads(path.read_text())
            if all(held.get(k) == v for k, v in head.items() if k in ("commit", "device")):
                self.tallies = {name: _tally(record) for name, record in held["cells"].items()}

    def missing(self, cell: Cell, seeds: int) -> tuple[int, ...]:
        done = self.tallies.get(cell.name, Tally()).seeds
        return tuple(s for s in range(seeds) if s not in done)

    def add(self, cell: Cell, tally: Tally) -> None:
        self.tallies.setdefault(cell.name, Tally()).add(tally)
        write(self._path, {**self._head, "cells": {name: _record(t) for name, t in self.tallies.items()}})


def _record(tally: Tally) -> dict[str, object]:
    """As it stands in the file: how many seeds, which as ranges, and wrong verdicts alone."""
    firsts = [s for s in tally.seeds if s - 1 not in tally.seeds]
    lasts = [s for s in tally.seeds if s + 1 not in tally.seeds]
    done = ",".join(f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True))
    return {
        "seeds": len(tally.seeds),
        "done": done,
        "wrong": tally.wrong(),
        "words": tally.words,
        "seconds": round(tally.seconds),
    }


def _tally(record: Mapping[str, Any]) -> Tally:
    ends = [[int(n) for n in part.split("-")] for part in record["done"].split(",")]
    seeds, wrong = [s for first, last in ends for s in range(first, last + 1)], record.get("wrong", {})
    accepted = {n: len(seeds) - wrong.get(n, 0) for n in HONEST} | {n: wrong.get(n, 0) for n in DISHONEST}
    return Tally(seeds, accepted, record.get("words", {}), record.get("seconds", 0.0))


def tasks(cells: Sequence[Cell], results: Results, *, seeds: int, device: str, beside_turns: bool) -> list[Task]:
    """What is left to do: the first seeds of all cells before the next ones, of large cells before small ones."""
    found = []
    for cell in cells:
        missing, size = results.missing(cell, seeds), _CHUNKS[cell.size]
        found += [Task(cell, missing[i : i + size], device, beside_turns) for i in range(0, len(missing), size)]
    return sorted(found, key=lambda t: (t.seeds[0] // max(_CHUNKS.values()), -t.cell.size))


def carry_out(left: Sequence[Task], results: Results, *, jobs: int, budget_s: float) -> int:
    """Run the tasks, in this process or in several, until the time is over, and keep what each gave; how many of them
    were done."""
    until, done = time.monotonic() + budget_s, 0
    with ExitStack() as stack:
        await_next: Callable[[float], tuple[Task, Tally]]
        if jobs == 1:
            alone = map(_with_task, left)
            await_next = lambda _: next(alone)  # noqa: E731
        else:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(jobs))  # its end is the workers' end
            await_next = pool.imap_unordered(_with_task, left).next
        for done in range(1, len(left) + 1):
            try:
                if time.monotonic() > until:
                    return done - 1
                task, tally = await_next(max(min(until - time.monotonic(), 1e6), 0.1))
            except multiprocessing.TimeoutError:
                return done - 1
            _told(task, tally, results)
    return done


def _with_task(task: Task) -> tuple[Task, Tally]:
    return task, run(task)


def _told(task: Task, tally: Tally, results: Results) -> None:
    results.add(task.cell, tally)
    wrong = ", ".join(f"{n} {c}" for n, c in tally.wrong().items()) or "right"
    print(f"{task.cell.name}: {len(task.seeds)} seeds, {tally.seconds:.1f} s: {wrong}", flush=True)
