"""Pictures: boxes below what they read and never on one another, bars on one scale, graphs by operator."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fakes.runs import FUSED, GRAPH, NODES, near, timed
from tilewright.facts.pattern import Match
from tilewright.ir.graph import Graph, Node
from tilewright.report import words
from tilewright.report.chart import LABELS, VALUES, WIDTH, chart
from tilewright.report.drawing import BOX_HEIGHT, BOX_WIDTH, LARGEST, Drawing, Item, draw
from tilewright.report.graphs import graph_view


@st.composite
def graphs(draw: st.DrawFn) -> list[Item]:
    count = draw(st.integers(0, 24))
    return [
        Item(id=str(i), label="op", below="", kind="torch",
             reads=tuple(map(str, draw(st.lists(st.integers(0, i - 1), max_size=3))) if i else ()))
        for i in range(count)
    ]  # fmt: skip


def assert_sound(drawing: Drawing) -> None:
    places = {box.item.id: box for box in drawing.boxes}
    for box in drawing.boxes:
        assert 0 <= box.x <= drawing.width - BOX_WIDTH and 0 <= box.y <= drawing.height - BOX_HEIGHT
        for source in box.item.reads:
            assert places[source].y + BOX_HEIGHT < box.y
    for one, other in itertools.combinations(drawing.boxes, 2):
        assert one.y != other.y or abs(one.x - other.x) > BOX_WIDTH


@given(graphs())
def test_boxes_stand_below_what_they_read_and_apart(items: list[Item]) -> None:
    drawing = draw(items)
    assert_sound(drawing)
    assert len(drawing.arrows) == sum(len(set(item.reads)) for item in items)
    assert drawing == draw(items), "the same picture each time"


def test_a_large_graph_is_capped_and_says_so() -> None:
    items = [Item(id=str(i), label="op", below="", kind="torch", reads=(str(i - 1),) if i else ()) for i in range(200)]
    drawing = draw(items)
    assert (len(drawing.boxes), drawing.left_out) == (LARGEST, 200 - LARGEST)
    assert_sound(drawing)


def test_before_and_after_by_operator() -> None:
    view = graph_view(GRAPH, (FUSED,), numbers={"fused_0": 3})
    assert (view.before.operators, view.after.operators) == (6, 3)
    assert [b.item.label for b in view.before.drawing.boxes if b.item.group == 3] == ["mul", "add", "sigmoid", "mul"]
    (site,) = (b.item for b in view.after.drawing.boxes if b.item.kind == "fused")
    assert (site.label, site.below, set(site.reads)) == ("fused_0", FUSED.title, {"call_0", "x", "weight"})
    assert view.after.lines[-1].split()[:2] == ["call_1", "sort"]
    assert sum(line.startswith("fused_0 ") for line in view.before.lines) == len(NODES)
    assert view.legend == ((3, "fused_0", FUSED.title),)


def test_nothing_fused_leaves_the_graph_as_it_is() -> None:
    view = graph_view(GRAPH, (), numbers={})
    assert view.before == view.after


def _chain(*ops: str) -> Graph:
    nodes = [Node(name="v0", op="input", shape=(4,), dtype="f32")]
    for i, op in enumerate(ops, start=1):
        nodes.append(Node(name=f"v{i}", op=op, shape=(4,), dtype="f32", args=(f"v{i - 1}",)))
    return Graph(nodes=tuple(nodes), outputs=(nodes[-1].name,))


def test_a_view_within_a_fused_group_belongs_to_it_and_one_beside_it_does_not() -> None:
    graph = _chain("exp", "reshape", "neg", "reshape")
    pattern = replace(FUSED, nodes=("v1", "v3"), matches=(Match(nodes=("v1", "v3"), operands=(), outputs=()),))
    view = graph_view(graph, (pattern,), numbers={"fused_0": 0})
    assert [b.item.label for b in view.after.drawing.boxes] == ["v0", "fused_0", "reshape"]
    assert (view.before.operators, view.before.views, view.after.views) == (2, 2, 1)


def test_two_sites_of_one_pattern_are_two_boxes() -> None:
    graph = _chain("exp", "sort", "exp")
    matches = tuple(Match(nodes=(name,), operands=(), outputs=()) for name in ("v1", "v3"))
    view = graph_view(graph, (replace(FUSED, nodes=("v1", "v3"), matches=matches),), numbers={"fused_0": 0})
    assert [b.item.label for b in view.after.drawing.boxes] == ["v0", "fused_0", "sort", "fused_0"]


def test_bars_share_a_scale_and_stay_in_the_picture() -> None:
    drawn = chart(timed())
    assert drawn is not None
    eager, _, ours = drawn.bars
    assert (eager.name, ours.name, ours.ours, eager.ours) == ("eager", "ours", True, False)
    assert abs(eager.length / ours.length - 1.3) < 0.01
    assert ours.low < LABELS + ours.length < ours.high
    assert abs((drawn.floor_x - LABELS) / ours.length - 0.75) < 0.01
    assert all(LABELS < x <= WIDTH - VALUES for bar in drawn.bars for x in (bar.low, bar.high, *bar.dots))
    assert 0 < len(ours.dots) <= 48
    assert chart(timed(times_ns=())) is None


def test_a_floor_above_all_times_is_in_the_picture_too() -> None:
    drawn = chart(timed(floor_ns=900e3))
    assert drawn is not None and drawn.floor_x < WIDTH - VALUES and drawn.floor_on_left


def test_words_have_units_and_few_digits() -> None:
    assert [words.duration(ns) for ns in (0.4, 845, 12_340, 1.5e6, 2.34e9)] == [
        "0.40 ns",
        "845 ns",
        "12.3 µs",
        "1.50 ms",
        "2.34 s",
    ]
    assert words.span(near(2e6)) == "1.98 – 2.02 ms"
    assert words.rate(4.25e12, "B/s") == "4.25 TB/s" and words.amount(0) == "0.00 B"
    assert words.times(near(1.3)) == "1.30x [1.29, 1.31]"
    assert words.settings(()) == "no knobs" and words.error(0) == "0" and words.error(3e-7) == "3.0e-07"
