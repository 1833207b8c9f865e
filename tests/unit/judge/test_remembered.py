"""torch.compile's modes beside one another: the fastest is the baseline, and what takes minutes is timed once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fakes.facts import context
from tilewright.facts.outcome import Interval, Samples, Timed
from tilewright.judge.remembered import BaselineMemory, ComparedModes, against_fastest

ALL = ("default", "reduce-overhead", "max-autotune")


def near(mid: float) -> Interval:
    return Interval(low=0.9 * mid, mid=mid, high=1.1 * mid)


def timed(ours: float, eager: float, **modes: float) -> Timed:
    """A verdict of these times, in ns; `modes`: by the names of times."""
    names = {"eager": eager, **{name.replace("__", ":").replace("_", "-"): ns for name, ns in modes.items()}}
    template = fakes_timed()
    return dataclasses.replace(
        template,
        times_ns=(("ours", near(ours)), ("ours_warm", near(ours)), *((n, near(ns)) for n, ns in names.items())),
        ratios=(*((n, near(ns / ours)) for n, ns in names.items()),
                *((f"{n}_warm", near(ns / ours)) for n, ns in names.items())),
        samples=tuple(Samples(name=n, bursts_ns=((ns,),)) for n, ns in names.items()),
        peak_bytes=tuple((n, 1) for n in names), compile_mode="default",
    )  # fmt: skip


def fakes_timed() -> Timed:
    from fakes.asked import at

    made = at(500)
    assert isinstance(made, Timed)
    return made


def test_the_fastest_mode_is_the_baseline_and_the_default_keeps_a_name_of_its_own() -> None:
    found = against_fastest(timed(100, 400, compile=300, compile__reduce_overhead=150), ())
    assert (found.compile_mode, found.compile_title) == ("reduce-overhead", "torch.compile (reduce-overhead)")
    assert found.ratio("compile") == near(1.5) and found.ratio("compile_warm") == near(1.5)
    assert found.ratio("compile:default") == near(3.0) and found.ratio("compile:default_warm") == near(3.0)
    assert found.time("compile") == near(150) and {s.name for s in found.samples} >= {"compile", "compile:default"}
    assert dict(found.peak_bytes).keys() == {"eager", "compile", "compile:default"}
    same = timed(100, 400, compile=150, compile__reduce_overhead=300)
    assert against_fastest(same, ()) == same and same.compile_title == "torch.compile"


def test_what_took_minutes_is_timed_once_for_a_problem_and_a_machine(tmp_path: Path) -> None:
    on, said = context(), list[str]()
    first = ComparedModes(on.problem, on.machine, ALL, folder=tmp_path)
    assert first.due(said.append) == ALL and said == []
    found = first.against_fastest(timed(100, 400, compile=300, compile__max_autotune=200))
    assert (found.compile_mode, found.compile_remembered) == ("max-autotune", "")
    again = ComparedModes(on.problem, on.machine, ALL, folder=tmp_path)
    assert again.due(said.append) == ALL[:2] and "max-autotune was timed on 20" in said[0] and "2.00x" in said[0]
    # On another day eager takes twice as long, since others are there: so does what is remembered.
    later = again.against_fastest(timed(100, 800, compile=600))
    ratio = later.ratio("compile")
    assert later.compile_mode == "max-autotune" and later.compile_remembered.startswith("20")
    assert ratio is not None and ratio.mid == pytest.approx(4.0) and ratio.low < 0.9 * 4.0 and ratio.high > 1.1 * 4.0
    assert later.compile_title == f"torch.compile (max-autotune, timed {later.compile_remembered})"
    other = dataclasses.replace(on.problem, source=on.problem.source + "\n# another")
    assert ComparedModes(other, on.machine, ALL, folder=tmp_path).due(said.append) == ALL
    newer = dataclasses.replace(on.machine, torch="9.0")
    assert ComparedModes(on.problem, newer, ALL, folder=tmp_path).due(said.append) == ALL


def test_modes_of_seconds_are_timed_anew_and_a_damaged_file_holds_nothing(tmp_path: Path) -> None:
    on = context()
    memory = BaselineMemory(on.problem, on.machine, folder=tmp_path)
    memory.keep(timed(100, 400, compile=300, compile__reduce_overhead=150), ALL)
    assert not (tmp_path / "baselines.json").exists() and memory.known(ALL) == ()
    memory.keep(timed(100, 400, compile__max_autotune=150), ALL)
    assert [one.mode for one in memory.known(ALL)] == ["max-autotune"]
    (tmp_path / "baselines.json").write_text('{"x": 3')
    assert memory.known(ALL) == ()
    BaselineMemory(on.problem, on.machine, folder=None).keep(timed(1, 2, compile__max_autotune=1), ALL)
