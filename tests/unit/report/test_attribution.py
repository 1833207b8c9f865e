"""What each realisation is worth in the module, from what was judged with it and without it."""

from __future__ import annotations

from fakes.facts import context, pattern, timed
from tilewright.facts.move import Event, Stop, Try
from tilewright.facts.pattern import Choice
from tilewright.report.attribution import Worth, attribution, worth_rows
from tilewright.report.ending import ending

GIVEN = context(*(pattern(id, points=1) for id in ("a", "b", "c", "slow")))


def judged(*tries: tuple[str, float], best: str) -> dict[str, Worth]:
    """What patterns are worth after these recipes were tried, each with how many times as fast as eager it is."""

    def recipe(names: str) -> tuple[Choice, ...]:
        return tuple(Choice(pattern=name, point=()) for name in names.split())

    events = [
        Event(seq=i, move=Try(what=recipe(names), why=""), outcome=timed(ratio), wall_s=1.0)
        for i, (names, ratio) in enumerate(tries)
    ]
    events.append(Event(seq=len(events), move=Stop(best=recipe(best), why=""), outcome=None, wall_s=0.0))
    end = ending(GIVEN, events)
    rows = {row.id: row.without for row in worth_rows(GIVEN, events, end)}
    found = {w.pattern: w for w in attribution(GIVEN, events, end)}
    assert all((rows[id] == "not measured") == (w.without is None) for id, w in found.items())
    return found


def share(worth: Worth) -> tuple[float, tuple[str, ...]]:
    assert worth.without is not None
    return round(worth.without.mid, 6), worth.instead


def test_a_share_is_against_what_lacks_nothing_else() -> None:
    """What was left out later is in both, and stood in nobody's place."""
    found = judged(("a b slow", 2.0), ("b slow", 1.25), ("a slow", 1.0), ("a b", 3.0), best="a b")
    assert (share(found["a"]), share(found["b"])) == ((1.6, ()), (2.0, ()))


def test_of_two_ways_to_do_without_it_the_faster_one_counts() -> None:
    found = judged(("a b", 3.0), ("b c", 2.0), ("b slow", 1.5), ("a", 1.0), best="a b")
    assert (share(found["a"]), share(found["b"])) == ((1.5, ("c",)), (3.0, ()))


def test_what_was_left_out_with_others_alone_is_not_measured() -> None:
    found = judged(("a b c", 3.0), ("c", 2.0), ("a b", 2.0), best="a b c")
    assert share(found["c"]) == (1.5, ())
    assert found["a"].without is None and found["b"].without is None
