"""A candidate as a CUDA graph, without a GPU: what is asked of which cell, in which order, and what comes of it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.facts import MACHINE
from tilewright.judge.check.check import RefusedByCheck
from tilewright.judge.client import CellFault
from tilewright.judge.tools import captured
from tilewright.judge.wire import messages as wire


class Cell:
    """Records, and replays in so many ns."""

    alive = True

    def __init__(self, name: str, ns: float, log: list[str], *, records: bool = True) -> None:
        self.name, self.ns, self.log, self.records = name, ns, log, records

    def do(self, request: object, **_: object) -> None:
        assert isinstance(request, wire.RecordGraph)
        if not self.records:
            raise CellFault("not_capturable", "it asks the device for a number", source=self.name, by_code=True)
        self.log.append(f"{self.name}: record")

    def ask(self, request: object, kind: object, **_: object) -> wire.GraphReplayed:
        assert isinstance(request, wire.ReplayGraph) and kind is wire.GraphReplayed
        self.log.append(f"{self.name}: replay")
        return wire.GraphReplayed(ns=(self.ns,) * request.times, outputs_tree="", outputs=())


class CaseMemory:
    """Says what is put where."""

    limits = SimpleNamespace(call_s=1.0)
    described = SimpleNamespace(args="", random=False, mutated_state=())

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.truths, self.sets = SimpleNamespace(run=self.run_reference), self

    def __getattr__(self, name: str) -> Any:
        def done(*_: object, **__: object) -> Any:
            self.log.append(name)
            return SimpleNamespace(exact=True)

        return done

    def slot(self, number: int) -> tuple[()]:
        return ()

    def inputs_at(self, k: int) -> tuple[()]:
        return ()


def check(cell: Cell, log: list[str], *, right: bool = True) -> Any:
    def compare(*_: object, **__: object) -> None:
        log.append("compare")
        if not right:
            raise RefusedByCheck("wrong_values", "a replay gives what the first inputs gave")

    return SimpleNamespace(
        memory=CaseMemory(log),
        cell=cell,
        case=0,
        usable=lambda *_: True,
        accept=lambda _: None,
        fetch=lambda **_: None,
        compare=compare,
    )


def run(**settings: Any) -> tuple[Any, list[str]]:
    log: list[str] = []
    ours = Cell("ours", 100.0, log)
    eager: Any = Cell("eager", 250.0, log, records=settings.pop("records", True))
    return captured(check(ours, log, **settings), eager, machine=MACHINE, rng=random.Random(1)), log


def test_it_is_filled_anew_before_it_is_replayed_and_held_against_the_truth() -> None:
    found, log = run()
    assert log[:7] == ["ours: record", "draw", "run_reference", "place", "ours: replay", "compare", "eager: record"]
    assert (found.ours_ns.mid, found.eager_ns.mid, found.ratio.mid) == (100.0, 250.0, 2.5) and found.pays
    assert log[7:].count("ours: replay") == log[7:].count("eager: replay") == 9


def test_a_module_that_cannot_be_recorded_is_told_of() -> None:
    found, _ = run(records=False)
    assert found.ratio is None and "asks the device" in found.why and found.pays and found.ours_ns.mid == 100.0


def test_a_wrong_replay_is_refused() -> None:
    with pytest.raises(RefusedByCheck, match="first inputs"):
        run(right=False)
