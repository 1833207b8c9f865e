"""What a run knows of earlier ones: this toolchain's winners are believed, another's are hints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fakes import kernel_programs as kp
from fakes.facts import MACHINE, OF_WINNERS, VERSIONS, context, pattern, winner
from fakes.realisers import H200
from tilewright.facts.devices import DEVICES
from tilewright.facts.machine import Machine
from tilewright.facts.move import Event, Outcome, Tune
from tilewright.facts.outcome import Failure, Interval, PointTime, Tuned
from tilewright.facts.pattern import Choice, Pattern
from tilewright.facts.run import Matched
from tilewright.facts.space import Knob, Space, point
from tilewright.facts.version import VERSION
from tilewright.facts.winner import Toolchain
from tilewright.realise.digests import skeleton_digests
from tilewright.run.winners import kept_as, known_winners, made_by, narrowed, near_winners, winner_of
from tilewright.search.tune.exchange import export
from tilewright.search.tune.memory import remember

PATTERN = pattern("fused_0", points=4)
MATCHED = (Matched(case=0, patterns=(PATTERN,), unmatched=()),)
SHAPE = PATTERN.shape_class


def test_this_toolchains_winner_is_believed_and_anothers_is_a_hint(tmp_path: Path) -> None:
    path, nowhere = tmp_path / "winners.db", tmp_path / "none.db"
    assert known_winners(MATCHED, MACHINE, winners=path, shipped=nowhere) == ((), ())
    choice = Choice(pattern="fused_0", point=point(unroll=3))
    older = winner(choice.point, shape_class=SHAPE, toolchain=replace(OF_WINNERS, driver="older"))
    remember(path, older)
    assert known_winners(MATCHED, MACHINE, winners=path, shipped=nowhere) == ((), (choice,))
    remember(path, winner(choice.point, shape_class=SHAPE))
    assert known_winners(MATCHED, MACHINE, winners=path, shipped=nowhere) == ((choice,), ())
    other = tmp_path / "other skeletons.db"
    remember(other, winner(choice.point, shape_class=SHAPE, toolchain=replace(OF_WINNERS, tilewright=VERSION)))
    assert known_winners(MATCHED, MACHINE, winners=other, shipped=nowhere) == ((), (choice,))
    moved_on = replace(MACHINE, torch="another")
    assert known_winners(MATCHED, moved_on, winners=path, shipped=nowhere) == ((), (choice,))


def test_a_winner_that_was_found_in_noise_is_a_hint(tmp_path: Path) -> None:
    for high, believed in ((120.0, True), (170.0, False)):
        time_ns = Interval(low=90.0, mid=100.0, high=high)
        found = winner(point(unroll=3), shape_class=SHAPE)
        remember(tmp_path / "w.db", replace(found, tried=(PointTime(point=found.point, time_ns=time_ns),)))
        remembered, hinted = known_winners(MATCHED, MACHINE, winners=tmp_path / "w.db", shipped=tmp_path / "none")
        assert (bool(remembered), bool(hinted)) == (believed, not believed)


def test_what_is_shipped_needs_no_tuning_on_the_same_toolchain(tmp_path: Path) -> None:
    export([winner(point(unroll=2), shape_class=SHAPE)], tmp_path / "shipped.db")
    found = known_winners(MATCHED, MACHINE, winners=tmp_path / "winners.db", shipped=tmp_path / "shipped.db")
    assert found == ((Choice(pattern="fused_0", point=point(unroll=2)),), ())


def test_a_point_that_the_knobs_do_not_allow_is_left_out(tmp_path: Path) -> None:
    for bad in (point(unroll=99), point(unroll=True), point(unroll=2, threads=4), ()):
        remember(tmp_path / "w.db", winner(bad, shape_class=SHAPE))
        assert known_winners(MATCHED, MACHINE, winners=tmp_path / "w.db", shipped=tmp_path / "none") == ((), ())


def test_a_legal_point_need_not_be_among_those_worth_trying() -> None:
    knobs = (Knob(name="unroll", values=(1, 2, 4), about=""), Knob(name="stream", values=(False, True), about=""))
    space = Space(knobs=knobs, points=(point(unroll=1, stream=False),))
    assert space.holds(point(unroll=4, stream=True))
    assert not space.holds(point(unroll=4, stream=1)) and not space.holds(point(unroll=4))


def softmaxes(*shapes: tuple[int, ...]) -> list[Pattern]:
    return [replace(PATTERN, program=kp.softmax(shape)) for shape in shapes]


def test_a_few_rows_more_are_of_the_same_class_where_rows_are_many() -> None:
    many, more, odd, few, fewer, wider, twice = softmaxes(
        (8192, 4096), (9008, 4096), (9001, 4096), (512, 4096), (496, 4096), (8192, 4112), (16384, 4096)
    )
    assert many.shape_class == more.shape_class and many.same != more.same
    others = [p.shape_class for p in (many, odd, few, fewer, wider, twice)]
    assert len({*others}) == len(others)
    columns = [replace(PATTERN, program=kp.softmax((64, 4096, n), 1)) for n in (2048, 2064, 2049)]
    assert columns[0].shape_class == columns[1].shape_class != columns[2].shape_class, "as vectors can be read"
    gathers = [replace(PATTERN, program=kp.embedded(n, 512)) for n in (8192, 8208)]
    assert len({p.shape_class for p in gathers}) == 2, "of loads each shape is its own"


def test_what_won_at_another_batch_is_measured_first_beside_one_other_point(tmp_path: Path) -> None:
    path, nowhere = tmp_path / "winners.db", tmp_path / "none.db"
    tuned, other, wider = (replace(p, id=f"fused_{i}") for i, p in enumerate(softmaxes((8, 512), (96, 512), (8, 544))))
    assert len({p.shape_class for p in (tuned, other, wider)}) == 3
    found = winner(point(unroll=3), shape_class=tuned.shape_class)
    for entry in kept_as(found, tuned):
        remember(path, entry)
    matched = (Matched(case=0, patterns=(other, wider), unmatched=()),)
    assert known_winners(matched, MACHINE, winners=path, shipped=nowhere) == ((), ())
    near = near_winners(matched, MACHINE, but=(), winners=path, shipped=nowhere)
    assert near == (Choice(pattern=other.id, point=point(unroll=3)),)
    assert not near_winners(matched, MACHINE, but=near, winners=path, shipped=nowhere), "what is known needs no hint"
    moved_on = replace(MACHINE, torch="another")
    assert not near_winners(matched, moved_on, winners=path, but=(), shipped=nowhere), "a hint of a hint"
    few = narrowed(matched, near)[0].patterns
    assert few[0].space.points == (point(unroll=3), other.space.points[0]) and few[1] == wider
    assert len(other.space.points) == 4


def test_reduced_over_the_batch_each_size_is_its_own() -> None:
    (columns,) = softmaxes((64, 512))
    columns = replace(columns, program=kp.softmax((64, 512), 0))
    assert not columns.batch_class and kept_as(winner(), columns) == (winner(),)


def tuning(outcome: Outcome) -> Event:
    return Event(seq=0, move=Tune(recipe=(), pattern="fused_0", points=()), outcome=outcome, wall_s=1.0)


def test_a_winner_carries_the_points_tried_and_the_share_of_the_modules_floor() -> None:
    times = {1: 1e3, 2: 51.2, 3: None}
    tried = tuple(
        PointTime(point=point(unroll=u), time_ns=None if t is None else Interval(low=t, mid=t, high=t), failure="")
        for u, t in times.items()
    )
    known = replace(context(PATTERN), versions=VERSIONS)
    found = winner_of(known, tuning(Tuned(points=tried)), point(unroll=2), found_at="2026-11-21T00:00:00+00:00")
    assert found is not None
    assert (found.tried, found.time_ns.mid, found.toolchain, found.shape_class) == (tried, 51.2, OF_WINNERS, SHAPE)
    assert found.floor_share == 256 / 1e10 * 1e9 / 51.2, "of 256 bytes at 1e10 bytes/s"
    assert winner_of(known, tuning(Tuned(points=tried)), point(unroll=3), found_at="") is None, "it did not run"
    refused = Failure(stage="tune", reason="crashed", summary="")
    assert winner_of(known, tuning(refused), point(unroll=2), found_at="") is None
    call = replace(tuning(Tuned(points=tried)), move=Tune(recipe=(), pattern="library_0", points=()))
    assert winner_of(known, call, point(unroll=2), found_at="") is None, "a library's call has no pattern's class"


def test_what_won_on_a_gpu_of_the_same_architecture_is_a_hint_where_there_is_nothing_better(tmp_path: Path) -> None:
    path, nowhere = tmp_path / "winners.db", tmp_path / "none.db"
    h200, h100, a100 = (
        replace(MACHINE, target="cuda", device=DEVICES[n].name, architecture=DEVICES[n].architecture)
        for n in ("h200", "h100", "a100")
    )
    ours = made_by(PATTERN, {"tilewright": VERSION, **dict(skeleton_digests("cuda"))}, H200)
    chain = replace(OF_WINNERS, tilewright=ours)
    theirs, mine = (Choice(pattern="fused_0", point=point(unroll=u)) for u in (3, 2))

    def won(choice: Choice, on: Machine, chain: Toolchain) -> None:
        found = winner(choice.point, shape_class=SHAPE, toolchain=chain)
        assert not remember(path, replace(found, target="cuda", device=on.device))

    won(theirs, h200, chain)
    assert known_winners(MATCHED, h200, winners=path, shipped=nowhere) == ((theirs,), ())
    assert known_winners(MATCHED, h100, winners=path, shipped=nowhere) == ((), (theirs,)), "it is measured here"
    assert known_winners(MATCHED, a100, winners=path, shipped=nowhere) == ((), ())
    won(mine, h100, replace(chain, torch="older"))
    assert known_winners(MATCHED, h100, winners=path, shipped=nowhere) == ((), (mine,))
