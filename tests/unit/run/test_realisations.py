"""What a run of fact leaves in the table, what the next finds there, and entries that are judged anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.facts import MACHINE, context, pattern, realised, timed
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import UserError
from tilewright.facts.move import Enter, Event, Move, Outcome, Stop, Try, Within
from tilewright.facts.outcome import Failure
from tilewright.facts.pattern import Choice, Region, Subproblem
from tilewright.facts.realised import Known
from tilewright.facts.run import SearchContext, Timing
from tilewright.facts.space import point
from tilewright.run.realisations import doubt_of, known_of_module, realised_by, vouched
from tilewright.run.recheck import recheck
from tilewright.search.retrieve import store as table

CHOICE = (Choice(pattern="fused_0", point=point(unroll=1)),)
PIECE = Subproblem(name="fused_0", title="t", region=Region(nodes=("y",), inputs=("x",), outputs=("y",)))


class Bench:
    """Judges everything as it was told to."""

    def __init__(self, outcome: Outcome, opened: SearchContext | UserError) -> None:
        self.outcome, self.opened = outcome, opened
        self.asked: list[Any] = []

    def __call__(self, request: Any, **_: Any) -> Bench:
        self.asked.append(request)
        return self

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def context(self, request: Any) -> SearchContext:
        if isinstance(self.opened, UserError):
            raise self.opened
        return replace(self.opened, problem=request.problem)

    def perform(self, context: SearchContext, move: Move) -> Outcome:
        assert isinstance(move, Try)
        self.asked.append(move.what)
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "opened", "why"),
    [
        (timed(3.0), context(pattern("fused_0")), ""),
        (timed(0.9), context(pattern("fused_0")), "slower than torch"),
        (Failure(stage="check", reason="wrong_values", summary="off by 3"), context(pattern("fused_0")), "off by 3"),
        (timed(3.0), context(pattern("fused_1")), "other patterns"),
        (timed(3.0), UserError("no such op"), "does not run here: no such op"),
    ],
)
def test_an_entry_is_trusted_anew_or_dropped(outcome: Outcome, opened: Any, why: str, tmp_path: Path) -> None:
    entry = realised(judged=False, model="someone", journal="")
    table.remember(tmp_path / table.FOLDER, entry)
    bench: Any = Bench(outcome, opened)
    done = recheck(entry, machine=MACHINE, cache=tmp_path, seed=0, timing=Timing(), say=print, bench_of=bench)
    kept = table.recall(tmp_path / table.FOLDER, "cpu", entry.key)
    assert done.now == kept and why in done.why
    if why:
        assert kept is None
    else:
        assert kept is not None and kept.judged and kept.ratio.mid == 3.0 and kept.model == "someone"
        assert bench.asked[1] == entry.what and bench.asked[0].problem.path.endswith("toy.py")


def test_a_skeletons_entry_expires_with_the_text_of_the_skeletons_and_a_models_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = replace(context(pattern("fused_0")), strategy="fact")
    written = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: ..."),))
    for what, expires in ((CHOICE, True), (written, False)):
        events = (Event(seq=0, move=Try(what=what, why=""), outcome=timed(2.0), wall_s=1.0),)
        (entry,) = realised_by(on, events, Stop(best=what, why=""), journal="")
        assert doubt_of(entry, MACHINE) == ""
        with monkeypatch.context() as changed:
            changed.setattr("tilewright.run.realisations.skeleton_digests", lambda target: (("products", "other"),))
            assert doubt_of(entry, MACHINE).endswith("is 0.1.0 other") == expires


def test_only_the_very_files_that_were_handed_over_here_are_vouched_for() -> None:
    files = (SourceFile(path="model.py", text="class ModelNew: ..."),)
    mine, other = Candidate(files=files), Candidate(files=(replace(files[0], text="class ModelNew: pass"),))
    entry = realised(candidate=mine.id)
    whole = Known(name="", realised=entry, doubt="")

    def knowing(known: Known) -> SearchContext:
        return replace(context(pattern("fused_0")), known=(known,))

    assert vouched(knowing(whole), mine)
    assert not vouched(knowing(whole), other), "composed otherwise since"
    assert not vouched(knowing(replace(whole, doubt="driver was -, is new")), mine)
    assert not vouched(knowing(replace(whole, name="fused_0")), mine), "a piece"
    assert not vouched(replace(knowing(whole), without=("table",)), mine)


def test_a_run_leaves_what_it_handed_over_and_the_next_finds_it(tmp_path: Path) -> None:
    on = replace(context(pattern("fused_0")), strategy="fact")
    events = (
        Event(seq=0, move=Enter(subproblem=PIECE), outcome=context(pattern("fused_0")), wall_s=1.0),
        Event(seq=1, move=Within(subproblem=PIECE, move=Try(what=CHOICE, why="")), outcome=timed(4.0), wall_s=1.0),
        Event(seq=2, move=Try(what=CHOICE, why=""), outcome=timed(2.0), wall_s=1.0),
    )
    stop = Stop(best=CHOICE, why="")
    (whole,) = realised_by(on, events, stop, journal="/runs/r/run.db")  # the piece has no graph to be known by
    assert (whole.key, whole.ratio.mid, whole.what) == (on.problem.digest, 2.0, CHOICE)
    assert whole.candidate == timed(2.0).checked.built.candidate_id
    table.remember(tmp_path, whole)
    (found,) = known_of_module(on.problem, MACHINE, tmp_path)
    assert (found.name, found.realised, found.doubt) == ("", whole, "")
    (found,) = known_of_module(on.problem, replace(MACHINE, driver="new"), tmp_path)
    assert found.doubt == "driver was -, is new"
    assert not list(realised_by(on, events[:2], Stop(best=None, why=""), journal=""))
