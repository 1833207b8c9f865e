"""The fact strategy, move by move: what is solved by itself, by whom, how all of it is composed, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import runs
from fakes.facts import context, pattern, realised, timed
from tilewright.edges.ledger import Ledger
from tilewright.edges.models.scripted import Scripted, scripted_reply
from tilewright.facts.candidate import LIBRARY, Candidate, SourceFile
from tilewright.facts.discovery import Part
from tilewright.facts.move import Ask, Capture, Enter, Event, Move, Outcome, Stop, Try, Tune, Within
from tilewright.facts.outcome import Captured, Failure, Interval, PointTime, Timed, Tuned
from tilewright.facts.pattern import Bind, Choice, Match, Pattern, Recipe, Region, Written
from tilewright.facts.realised import Known
from tilewright.facts.run import Limits, SearchContext
from tilewright.facts.space import point
from tilewright.ir.graph import Call, Graph, Node
from tilewright.ir.program import Operand, Output, Program, Statement
from tilewright.report import summary
from tilewright.run.drive import drive
from tilewright.search.strategies import STRATEGIES

START = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: 'ns 900'\n"),))


def stands(id: str, *, width: int, points: int = 2, nodes: Sequence[str] = (), places: int = 1) -> Pattern:
    """A pattern at some places, unlike those of other widths."""
    shape = (4, width)
    program = Program(
        domain=shape, operands=(Operand(name="x", dtype="f32", shape=shape),),
        body=(Statement(result="y", op="neg", args=("x",), dtype="f32"),),
        outputs=(Output(name="y", dtype="f32", shape=shape),),
    )  # fmt: skip
    matches = tuple(
        Match(
            nodes=tuple(nodes or (f"{id}_{i}",)), operands=(Bind(node=f"in_{id}_{i}", split=shape, order=(0, 1)),),
            outputs=(Bind(node=tuple(nodes or (f"{id}_{i}",))[-1], split=shape, order=(0, 1)),),
        )
        for i in range(places)
    )  # fmt: skip
    return replace(
        pattern(id, points=points), program=program, matches=matches, nodes=tuple(n for s in matches for n in s.nodes)
    )


def part(id: str, ns: float, floor_ns: float = 10.0) -> Part:
    return Part(pattern=id, title=id, rule="", why="", calls=(), ns=ns, share=ns / 1000.0, floor_ns=floor_ns)


def given(*patterns: Pattern, parts: Sequence[Part], model: str = "", limits: Limits = Limits()) -> SearchContext:  # noqa: B008
    return replace(context(*patterns), strategy="fact", parts=tuple(parts), model=model, limits=limits)


def at(ns: float, eager_ns: float = 1000.0, floor_ns: float = 50.0) -> Timed:
    spread = Interval(low=ns * 0.99, mid=ns, high=ns * 1.01)
    eager = Interval(low=eager_ns * 0.99, mid=eager_ns, high=eager_ns * 1.01)
    return replace(timed(eager_ns / ns), times_ns=(("ours", spread), ("eager", eager)), floor_ns=floor_ns)


class World:
    """A machine on which each pattern, by itself and in the module, takes what it is told to."""

    def __init__(self, on: SearchContext, alone: dict[str, float], module: Callable[[Recipe], Timed | Failure]) -> None:
        self.on = on
        self.others: tuple[str, ...] = ()
        self.alone = alone
        self.module = module

    def inside(self, id: str) -> SearchContext:
        """The problem of a piece: the same pattern, under the id that it has there."""
        whole = [replace(p, id="fused_0") for m in self.on.matched for p in m.patterns if p.id == id]
        if id in self.others:  # by itself it is taken for something else
            whole = [replace(stands("fused_0", width=99))]
        inner = replace(context(*whole), start=START)
        return replace(inner, problem=replace(inner.problem, name=id))

    def perform(self, move: Move) -> Outcome:
        match move:
            case Enter(subproblem=subproblem):
                if subproblem.name not in self.alone:
                    return Failure(stage="propose", reason="not_alone", summary="nothing is known of it")
                return self.inside(subproblem.name)
            case Within(subproblem=subproblem, move=Try(what=Candidate() as candidate)):
                text = "".join(f.text for f in candidate.files)
                ns = re.search(r"ns (\d+)", text)
                return at(float(ns[1])) if ns else Failure(stage="check", reason="wrong_values", summary="off by 3")
            case Within(subproblem=subproblem, move=Try()):
                return at(self.alone[subproblem.name])
            case Within(move=Tune(points=points)) | Tune(points=points):
                times = (Interval(low=1, mid=3 - i, high=4) for i in range(len(points)))
                return Tuned(points=tuple(PointTime(point=p, time_ns=t) for p, t in zip(points, times, strict=True)))
            case Try(what=tuple() as recipe):
                return self.module(recipe)
        raise AssertionError(move)


def ran(path: Path, world: World, replies: Sequence[str] = ()) -> tuple[Stop, tuple[Event, ...]]:
    script = Scripted([scripted_reply(r) for r in replies])

    def perform(move: Move) -> Outcome:
        return script.ask(move) if isinstance(move, Ask) else world.perform(move)

    with Ledger(path) as ledger:
        for _ in range(2):  # the second time all is replayed
            stop = drive(STRATEGIES["fact"](world.on), ledger=ledger, perform=perform, watch=lambda e: None)
        return stop, ledger.events()


def told(events: Sequence[Event]) -> list[str]:
    """The moves in short: "enter a", "a: tune", "a: try", "try a b", "ask"."""

    def said(move: Move) -> str:
        match move:
            case Enter(subproblem=subproblem):
                return f"enter {subproblem.name}"
            case Within(subproblem=subproblem, move=inner):
                return f"{subproblem.name}: {type(inner).__name__.lower()}"
            case Try(what=tuple() as recipe):
                return "try " + " ".join(c.pattern for c in recipe)
        return type(move).__name__.lower()

    return [said(e.move) for e in events]


def chosen(recipe: object) -> dict[str, object]:
    assert isinstance(recipe, tuple)
    return {c.pattern: c.written.candidate if c.written else c.point for c in recipe}


def test_each_is_solved_by_itself_and_all_are_composed_and_left_out_in_turn(tmp_path: Path) -> None:
    """What can win most comes first; what can win nothing is not solved; its winner at another id is known again."""
    a, b, c = stands("a", width=8), stands("b", width=16, places=3), stands("c", width=32, points=1)
    on = given(a, b, c, parts=[part("b", 600), part("a", 390), part("c", 10, floor_ns=9)])
    world = World(on, {"a": 500.0, "b": 250.0}, lambda r: at(900.0 - 300 * len(r) + 100 * ("c" in chosen(r))))
    stop, events = ran(tmp_path / "run.db", world)
    assert told(events) == [
        "enter b", "b: tune", "b: try", "enter a", "a: tune", "a: try",
        "try b a c", "try b c", "try a c", "try b a", "stop",
    ]  # fmt: skip
    assert chosen(stop.best) == {"b": point(unroll=2), "a": point(unroll=2), "c": point(unroll=1)}
    shown = {w["pattern"]: w for w in summary(on, events, candidate_dir="")["attribution"]}
    assert shown["b"]["alone"]["mid"] == 4.0 and shown["c"]["alone"] is None
    assert [round(shown[n]["without"]["mid"], 6) for n in "abc"] == [4.0, 4.0, 3.0]


def test_what_is_slower_than_torch_is_left_to_it_and_what_cannot_stand_alone_is_tuned_in_its_place(
    tmp_path: Path,
) -> None:
    a, b, c = (stands(n, width=w) for n, w in (("a", 8), ("b", 16), ("c", 32)))
    on = given(a, b, c, parts=[part("a", 500), part("b", 300), part("c", 200)])
    world = World(on, {"a": 500.0, "b": 1200.0}, lambda r: at(800.0 / len(r)))
    stop, events = ran(tmp_path / "run.db", world)
    assert told(events)[-5:] == ["tune", "try a c", "try c", "try a", "stop"] and "enter c" in told(events)
    assert chosen(stop.best) == {"a": point(unroll=2), "c": point(unroll=2)}


def test_a_piece_that_is_taken_for_another_pattern_is_tuned_in_its_place(tmp_path: Path) -> None:
    world = World(given(stands("a", width=8), parts=[part("a", 500)]), {"a": 500.0}, lambda r: at(500.0))
    world.others = ("a",)
    stop, events = ran(tmp_path / "run.db", world)
    assert told(events) == ["enter a", "tune", "try a", "stop"] and chosen(stop.best) == {"a": point(unroll=2)}


WRITTEN = "IDEA: by hand\nPREDICTION: faster\nFILE: model.py\n```python\nclass ModelNew: 'ns {ns}'\n```\n"


def test_a_model_is_asked_where_enough_is_left_and_its_kernel_stands_at_all_places(tmp_path: Path) -> None:
    """Pattern a is at its floor with a skeleton; of b much is left. Calls are shared by what can be won."""
    a, b = stands("a", width=8), stands("b", width=16, places=2)
    on = given(a, b, parts=[part("b", 500), part("a", 500)], model="scripted:x", limits=Limits(calls=4))
    world = World(on, {"a": 55.0, "b": 800.0}, lambda r: at(900.0 / (1 + len(r))))
    stop, events = ran(tmp_path / "run.db", world, [WRITTEN.format(ns=ns) for ns in (400, 390, 390, 390)])
    assert told(events)[:7] == ["enter b", "b: tune", "b: try", "b: try", "ask", "b: try", "ask"]
    assert "ask" not in told(events)[told(events).index("enter a") :]
    assert [e.move.turn for e in events if isinstance(e.move, Ask)] == [0, 1], "two of four: a could have won as much"
    made = chosen(stop.best)
    assert isinstance(made["b"], Candidate) and "ns 390" in made["b"].files[0].text and made["a"] == point(unroll=2)
    (by_hand,) = (c.written for c in stop.best if c.written)
    assert [r.outputs for r in by_hand.regions] == [("b_0",), ("b_1",)]
    assert {w["pattern"]: w["by"] for w in summary(on, events, candidate_dir="")["attribution"]} == {
        "a": "skeleton", "b": "model",
    }  # fmt: skip


def test_of_two_that_overlap_the_larger_gain_goes_first_and_the_other_is_measured_in_its_place(tmp_path: Path) -> None:
    wide, narrow = stands("wide", width=8, nodes=("m", "n")), stands("narrow", width=16, nodes=("n",))
    parts = [part("wide", 500), part("narrow", 500)]
    on = given(wide, narrow, parts=parts, model="scripted:x", limits=Limits(calls=2))

    for slower, kept in (("narrow", "wide"), ("wide", "narrow")):
        world = World(
            on, {"wide": 700.0, "narrow": 700.0}, lambda r, slower=slower: at(600.0 if slower in chosen(r) else 300.0)
        )
        stop, events = ran(tmp_path / f"{kept}.db", world, [WRITTEN.format(ns=300), WRITTEN.format(ns=400)])
        assert [t for t in told(events) if t.startswith("try")] == ["try wide", "try narrow"]
        assert set(chosen(stop.best)) == {kept}


def test_a_kernel_that_breaks_the_module_is_found_by_halving(tmp_path: Path) -> None:
    a, b = stands("a", width=8), stands("b", width=16)
    on = given(a, b, parts=[part("a", 500), part("b", 500)])
    refused = Failure(stage="check", reason="wrong_values", summary="off by 3")
    world = World(on, {"a": 500.0, "b": 500.0}, lambda r: refused if "a" in chosen(r) else at(500.0))
    stop, _ = ran(tmp_path / "run.db", world)
    assert set(chosen(stop.best)) == {"b"}


def test_without_parts_it_composes_what_is_tuned_in_its_place(tmp_path: Path) -> None:
    on = given(stands("a", width=8), parts=[])
    stop, events = ran(tmp_path / "run.db", World(on, {}, lambda r: at(500.0)))
    assert told(events) == ["tune", "try a", "stop"] and chosen(stop.best) == {"a": point(unroll=2)}


# ---------------------------------------------------------------- what is known from before


def known(name: str, *, doubt: str = "", **changes: object) -> Known:
    return Known(name=name, realised=realised(**changes), doubt=doubt)


def test_a_solved_module_is_tried_once_and_no_model_is_asked(tmp_path: Path) -> None:
    recipe = (Choice(pattern="a", point=point(unroll=2)),)
    on = given(stands("a", width=8), parts=[], model="scripted:x")
    on = replace(on, known=(known("", what=recipe, model="scripted:x"),))
    stop, events = ran(tmp_path / "a.db", World(on, {}, lambda r: at(500.0)))
    assert (told(events), stop.best) == (["try a", "stop"], recipe)
    for again in (
        replace(on, known=(known("", what=recipe),)),  # then nobody had asked a model
        replace(on, known=(known("", what=(Choice(pattern="gone", point=()),), model="scripted:x"),)),
    ):
        _, events = ran(tmp_path / f"{len(again.known[0].realised.model)}.db", World(again, {}, lambda r: at(500.0)))
        assert told(events) == ["tune", "try a", "stop"]


def test_what_no_longer_pays_is_looked_for_anew(tmp_path: Path) -> None:
    recipe = (Choice(pattern="a", point=point(unroll=2)),)
    on = replace(given(stands("a", width=8), parts=[]), known=(known("", what=recipe),))
    _, events = ran(tmp_path / "a.db", World(on, {}, lambda r: at(1000.0)))
    assert told(events) == ["try a", "tune", "try a", "stop"]


def test_a_known_piece_is_believed_and_a_doubted_one_judged_again(tmp_path: Path) -> None:
    """Of a the kernel is trusted; that of b comes from another toolchain and passes, that of c does not any more."""
    a, b, c = (stands(n, width=w) for n, w in (("a", 8), ("b", 16), ("c", 32)))
    by_hand = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: 'ns 200'\n"),))
    broken = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: 'broken'\n"),))
    on = given(a, b, c, parts=[part("a", 500), part("b", 300), part("c", 200)])
    on = replace(on, known=(
        known("a", what=by_hand), known("b", what=by_hand, doubt="driver was 1, is 2"),
        known("c", what=broken, doubt="imported"),
    ))  # fmt: skip
    stop, events = ran(tmp_path / "a.db", World(on, {"b": 900.0, "c": 500.0}, lambda r: at(900.0 - 200 * len(r))))
    assert told(events)[:6] == ["enter b", "b: try", "enter c", "c: try", "c: tune", "c: try"]
    assert chosen(stop.best) == {"a": by_hand, "b": by_hand, "c": point(unroll=2)}


# ---------------------------------------------------------------- what a model proposes


def proposal(*calls: str) -> str:
    return f'```json\n{{"patterns": [{{"title": "sort it", "calls": {list(calls)}, "why": "w"}}]}}\n```'.replace(
        "'", '"'
    )


def test_a_proposed_part_is_written_by_the_model_and_stands_beside_skeletons(tmp_path: Path) -> None:
    """Its first proposal names nothing that is there; told why, it proposes what no skeleton does."""
    a = stands("a", width=8)
    graph = runs.GRAPH
    left = Part(
        pattern="", title="sort", rule="", why="no skeleton", calls=("call_1",), ns=1e6, share=0.9, floor_ns=1.0
    )
    on = given(a, parts=[left, part("a", 1e5)], model="scripted:x", limits=Limits(calls=4))
    on = replace(on, cases=(replace(on.cases[0], graph=graph),), machine=replace(on.machine, copy_bytes_per_s=1e15))
    world = World(on, {"a": 55.0, "piece_0": 0.0}, lambda r: at(900.0 - 300 * len(r)))
    replies = [proposal("call_9"), proposal("call_1"), WRITTEN.format(ns=300), WRITTEN.format(ns=300)]
    stop, events = ran(tmp_path / "run.db", world, replies)
    assert told(events)[:5] == ["ask", "ask", "enter piece_0", "piece_0: try", "ask"]
    asks = [e.move.prompt.messages for e in events if isinstance(e.move, Ask)]
    assert "no operator is called call_9" in asks[1][-1].text
    made = chosen(stop.best)
    assert isinstance(made["piece_0"], Candidate) and made["a"] == point(unroll=2)
    (by_hand,) = (c.written for c in stop.best if c.written)
    assert by_hand.title == "sort it" and by_hand.regions[0].outputs == ("sorted",)
    assert {w["pattern"]: w["title"] for w in summary(on, events, candidate_dir="")["attribution"]} == {
        "a": "a", "piece_0": "sort it",
    }  # fmt: skip


def called(*nodes: str, name: str = "library_0") -> Choice:
    """A library's call that makes these values of a graph."""
    region = Region(nodes=nodes, inputs=("in",), outputs=nodes[-1:])
    return Choice(pattern=name, point=(), written=Written(title="a call", candidate=CALL, regions=(region,)))


CALL = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: 'ns 100'\n"),), language=LIBRARY)


def with_library(*, parts: Sequence[Part]) -> SearchContext:
    """Two patterns side by side, and a call that makes what both make."""
    a, b = stands("a", width=8, nodes=("m",)), stands("b", width=16, nodes=("n",))
    on = replace(given(a, b, parts=parts), libraries=(called("m", "n"),))
    calls = (
        Call(name="c_m", target="aten.exp.default", args=(), results=("m",)),
        Call(name="c_n", target="aten.exp.default", args=(), results=("n",)),
    )
    nodes = tuple(
        Node(name=n, op="call", shape=(4, 8), dtype="f32", origin=f"c_{n}" if n != "in" else "")
        for n in ("in", "m", "n")
    )
    graph = Graph(nodes=nodes, outputs=("n",), calls=calls)
    return replace(on, cases=(replace(on.cases[0], graph=graph), *on.cases[1:]))


@pytest.mark.parametrize(
    ("module", "kept"),
    [({"library_0": 300.0, "a b": 500.0}, ["library_0"]), ({"library_0": 500.0, "a b": 300.0}, ["a", "b"])],
)
def test_a_library_call_is_a_realisation_and_what_it_takes_the_place_of_is_its_rival_together(
    tmp_path: Path, module: dict[str, float], kept: list[str]
) -> None:
    parts = [replace(part("a", 500), calls=("c_m",)), replace(part("b", 500), calls=("c_n",))]
    world = World(
        with_library(parts=parts), {"a": 700.0, "b": 700.0, "library_0": 100.0},
        lambda r: at(module.get(" ".join(sorted(chosen(r))), 800.0)),
    )  # fmt: skip
    stop, events = ran(tmp_path / "run.db", world)
    tries = [t for t in told(events) if t.startswith("try")]
    assert tries[:2] == ["try library_0", "try a b"] and "try a" not in tries[:3]
    assert sorted(chosen(stop.best)) == kept
    worth = {w["pattern"]: w["by"] for w in summary(world.on, events, candidate_dir="")["attribution"]}
    assert worth == dict.fromkeys(kept, "library" if kept == ["library_0"] else "skeleton")


@pytest.mark.parametrize(("text", "tried", "kept"), [("ns 2000", 0, "ab"), ("wrong", 1, "ab"), ("wrong", 1, "library")])
def test_a_library_call_that_is_slower_is_left_and_one_refused_by_itself_is_tried_in_the_module(
    tmp_path: Path, text: str, tried: int, kept: str
) -> None:
    parts = [replace(part("a", 500), calls=("c_m",)), replace(part("b", 500), calls=("c_n",))]
    call = replace(CALL, files=(SourceFile(path="model.py", text=text),))
    on = with_library(parts=parts)
    on = replace(on, libraries=tuple(
        replace(c, written=replace(c.written, candidate=call)) for c in on.libraries if c.written
    ))  # fmt: skip
    world = World(
        on, {"a": 700.0, "b": 700.0, "library_0": 100.0},
        lambda r: at(300.0 if kept == "library" and "library_0" in chosen(r) else 500.0),
    )  # fmt: skip
    stop, events = ran(tmp_path / "run.db", world)
    assert "library_0: try" in told(events) and told(events).count("try library_0") == tried
    assert set(chosen(stop.best)) == ({"library_0"} if kept == "library" else {"a", "b"})


def recorded(on: SearchContext, path: Path, outcome: Captured | Failure) -> tuple[Stop, list[str]]:
    """A run on a GPU where the best is recorded as a CUDA graph with this outcome."""
    on = replace(on, problem=replace(on.problem, target="cuda"))

    class Graphs(World):
        def perform(self, move: Move) -> Outcome:
            return outcome if isinstance(move, Capture) else super().perform(move)

    stop, events = ran(path, Graphs(on, {"a": 300.0, "b": 200.0}, lambda recipe: at(600.0)))
    return stop, told(events)


def test_on_a_gpu_what_is_handed_over_pays_as_a_cuda_graph_too(tmp_path: Path) -> None:
    a, b = stands("a", width=8), stands("b", width=16)
    on = given(a, b, parts=[part("b", 600), part("a", 390)])
    ours, twice = Interval(low=99, mid=100, high=101), Interval(low=1.9, mid=2.0, high=2.1)
    good = Captured(ours_ns=ours, eager_ns=Interval(low=199, mid=200, high=201), ratio=twice)
    stop, moves = recorded(on, tmp_path / "good.db", good)
    assert stop.best and "2.00x [1.90, 2.10] as CUDA graphs" in stop.why and moves[-2:] == ["capture", "stop"]
    slow = replace(good, ratio=Interval(low=0.99, mid=1.0, high=1.02))
    stop, _ = recorded(on, tmp_path / "slow.db", slow)
    assert stop.best is None and "not faster beyond noise as a CUDA graph" in stop.why
    alone = replace(good, eager_ns=None, ratio=None, why="it asks the device for a number")
    stop, _ = recorded(on, tmp_path / "alone.db", alone)
    assert stop.best, "who can't record the module has no graph to lose"
    wrong = Failure(stage="check", reason="wrong_values", summary="a replay gives what the first inputs gave")
    stop, _ = recorded(on, tmp_path / "wrong.db", wrong)
    assert stop.best is None and "as a CUDA graph refused: a replay gives" in stop.why


def test_on_a_cpu_nothing_is_recorded(tmp_path: Path) -> None:
    a, b = stands("a", width=8), stands("b", width=16)
    on = given(a, b, parts=[part("b", 600), part("a", 390)])
    _, events = ran(tmp_path / "run.db", World(on, {"a": 300.0, "b": 200.0}, lambda recipe: at(600.0)))
    assert "capture" not in told(events)


def test_a_step_of_training_is_composed_of_what_is_tuned_where_it_stands(tmp_path: Path) -> None:
    """No operator of a backward is run by itself: nothing is entered; what has a backward is composed and left out in
    turn all the same."""
    a, b = stands("a", width=8), stands("b", width=16)
    on = given(a, b, parts=[])
    on = replace(on, problem=replace(on.problem, target="cuda", mode="training"))
    took = {("a", "b"): 400.0, ("a",): 700.0, ("b",): 600.0}
    world = World(on, {}, lambda recipe: at(took[tuple(sorted(c.pattern for c in recipe))]))
    stop, events = ran(tmp_path / "run.db", world)
    moves = told(events)
    assert moves[:2] == ["tune", "tune"] and {"try a b", "try a", "try b"} <= set(moves), moves
    assert set(chosen(stop.best)) == {"a", "b"} and "capture" not in moves


def test_parts_are_switched_off_by_name(tmp_path: Path) -> None:
    """Without its pieces and its tuning all is realised where it stands, and libraries' calls are rivals."""
    a, b = stands("a", width=8, nodes=["n0"]), stands("b", width=16, nodes=["n1"])
    library = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: 'ns 10'\n"),), language=LIBRARY)
    region = Region(nodes=("n0",), inputs=("x",), outputs=("n0",))
    called = Choice(pattern="library_0", point=(), written=Written(title="t", candidate=library, regions=(region,)))
    on = replace(given(a, b, parts=[part("b", 600), part("a", 390)]), libraries=(called,), without=("alone", "tuning"))
    took = {("a", "b"): 500.0, ("b", "library_0"): 300.0, ("b",): 800.0, ("library_0",): 600.0}
    world = World(on, {"a": 1.0, "b": 1.0}, lambda recipe: at(took[tuple(sorted(c.pattern for c in recipe))]))
    stop, events = ran(tmp_path / "run.db", world)
    moves = told(events)
    assert not [m for m in moves if "enter" in m or m == "tune"] and moves[0] == "try a b", moves
    assert set(chosen(stop.best)) == {"b", "library_0"}
