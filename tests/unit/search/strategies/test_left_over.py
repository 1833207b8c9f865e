"""torch.compile and libraries' calls as realisations, scripted: what is tried, in which order, and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fakes.facts import context, pattern, timed
from tilewright.facts.candidate import LIBRARY, Candidate, SourceFile
from tilewright.facts.move import Capture, Event, Move, Outcome, Stop, Try, Tune
from tilewright.facts.outcome import Failure, Interval, Launches, PointTime, Timed, Tuned
from tilewright.facts.pattern import CUDA_GRAPH, INDUCTOR, Choice, Region, Written, inductor_mode, without_inductor
from tilewright.facts.run import Matched, SearchContext
from tilewright.facts.space import Point, point
from tilewright.ir.graph import Call, Graph, Node
from tilewright.search.strategies.catalog import catalog
from tilewright.search.strategies.fact import fact
from tilewright.search.strategies.handing_over import handed_over

WRONG = Failure(stage="check", reason="wrong_values", summary="off by 3")
MODES = tuple(point(mode=m) for m in ("default", "reduce-overhead", "max-autotune-no-cudagraphs"))


def graph(*labels: str) -> Graph:
    """A chain of operators, each with one value of its name."""
    x = Node(name="x", op="input", shape=(4, 8), dtype="f32")
    nodes = [Node(name=label, op="call", shape=(4, 8), dtype="f32", origin=label) for label in labels]
    calls = tuple(Call(name=n, target=f"aten.{n}.default", args=(), results=(n,)) for n in labels)
    return Graph(nodes=(x, *nodes), outputs=(labels[-1],), calls=calls)


def given(
    *labels: str, fused: tuple[str, ...] = (), modes: tuple[Point, ...] = MODES[:1], **more: Any
) -> SearchContext:
    """A module of these operators, of which patterns have those that are `fused`."""
    on = context(*(pattern(name, points=1) for name in fused))
    return replace(on, cases=(replace(on.cases[0], graph=graph(*labels)),), inductor=modes, **more)


def at(ns: float, *, eager: float = 1000.0, compiled: float | None = None, launch_ns: float = 0.0) -> Timed:
    """With torch.compile beside it, if that took so long."""

    def near(value: float) -> Interval:
        return Interval(low=value * 0.99, mid=value, high=value * 1.01)

    ratios = (("eager", near(eager / ns)), *((("compile", near(compiled / ns)),) if compiled else ()))
    return replace(
        timed(eager / ns), times_ns=(("ours", near(ns)), ("eager", near(eager))), ratios=ratios,
        launches=Launches(count=1, cost_ns=launch_ns) if launch_ns else None,
    )  # fmt: skip


def played(steps: Any, judge: Callable[[Move], Outcome]) -> tuple[Stop, list[str]]:
    """The moves in short: "a inductor" is a Try of pattern a with what is left under torch.compile."""
    made: list[str] = []
    move = next(steps)
    while not isinstance(move, Stop):
        if isinstance(move, Try) and isinstance(move.what, tuple):
            mode = inductor_mode(move.what)
            names = [c.pattern + (f":{dict(c.point)['backend']}" if c.written else "") for c in move.what]
            names = [n if n != INDUCTOR or mode == "default" else mode for n in names]
            made.append(" ".join(names))
        else:
            made.append(type(move).__name__.lower() + (f" {move.pattern}" if isinstance(move, Tune) else ""))
        move = steps.send(Event(seq=len(made), move=move, outcome=judge(move), wall_s=1.0))
    return move, made


def judged(times: dict[str, Timed | Failure]) -> Callable[[Move], Outcome]:
    def judge(move: Move) -> Outcome:
        assert isinstance(move, Try) and isinstance(move.what, tuple)
        mode = inductor_mode(move.what)
        return times[" ".join([*(c.pattern for c in without_inductor(move.what)), *([mode] if mode else [])])]

    return judge


def test_where_nothing_matches_the_module_itself_is_compiled_in_every_strategy() -> None:
    for strategy in (catalog, fact):
        stop, moves = played(strategy(given("i0")), judged({"default": at(500, compiled=500)}))
        assert moves == [INDUCTOR] and stop.best == (Choice(pattern=INDUCTOR, point=MODES[0]),)
        stop, moves = played(strategy(given("i0")), judged({"default": WRONG}))
        assert moves == [INDUCTOR] and stop.best is None and stop.why.startswith("no pattern matched")


def test_what_is_left_is_compiled_and_kept_where_it_is_faster() -> None:
    times = {"a": at(800, compiled=900), "a default": at(500, compiled=900)}
    stop, moves = played(catalog(given("a", "i0", fused=("a",))), judged(times))
    assert moves == ["a", "a inductor"]
    assert stop.best is not None and inductor_mode(stop.best) == "default"
    times["a default"] = at(810, compiled=900)
    stop, moves = played(catalog(given("a", "i0", fused=("a",))), judged(times))
    assert moves == ["a", "a inductor"] and stop.best == (Choice(pattern="a", point=point(unroll=1)),)


def test_where_nothing_is_left_or_libraries_have_it_nothing_is_compiled() -> None:
    times = {"a": at(500, compiled=900)}
    for labels in (("a",), ("a", "mm")):
        _, moves = played(catalog(given(*labels, fused=("a",))), judged(times))
        assert moves == ["a"], labels


def test_where_torch_compile_is_ahead_the_module_itself_is_judged_and_handed_over() -> None:
    """Also where nothing is left to torch, and where a kernel is a model's."""
    times = {"a": at(800, compiled=400), "default": at(400, compiled=400)}
    stop, moves = played(catalog(given("a", fused=("a",))), judged(times))
    assert moves == ["a", INDUCTOR] and stop.best == (Choice(pattern=INDUCTOR, point=MODES[0]),)
    written = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: ..."),))
    stop, moves = played(handed_over(written, times["a"], context=given("a")), judged(times))
    assert moves == [INDUCTOR] and stop.best == (Choice(pattern=INDUCTOR, point=MODES[0]),)
    stop, moves = played(handed_over(written, at(390, compiled=400), context=given("a")), judged(times))
    assert moves == [] and stop.best == written


def test_on_a_gpu_modes_are_tried_by_what_may_pay() -> None:
    """Where the host's launches take long its CUDA graph comes first; Inductor's products only where products are
    left."""
    bound = at(800, launch_ns=700)
    times = {"a": bound, "a reduce-overhead": at(200), "a default": at(700), "a max-autotune-no-cudagraphs": at(190)}
    stop, moves = played(catalog(given("a", fused=("a",), modes=MODES)), judged(times))
    assert moves == ["a", "a reduce-overhead"] and stop.best is not None
    assert inductor_mode(stop.best) == "reduce-overhead"
    _, moves = played(catalog(given("a", "i0", "mm", fused=("a",), modes=MODES)), judged(times))
    assert moves == ["a", "a reduce-overhead", "a inductor"], "at most two"
    times["a"] = at(800)
    _, moves = played(catalog(given("a", "i0", "mm", fused=("a",), modes=MODES)), judged(times))
    assert moves == ["a", "a inductor", "a max-autotune-no-cudagraphs"]


def test_one_cuda_graph_of_all_is_tried_first_where_launches_take_long() -> None:
    graph = point(mode=CUDA_GRAPH)
    times = {"a": at(800, launch_ns=700), "a cuda-graph": at(200), "a reduce-overhead": at(220)}
    on = given("a", fused=("a",), modes=(*MODES, graph))
    stop, moves = played(catalog(on), judged(times))
    assert moves == ["a", "a cuda-graph", "a reduce-overhead"]
    assert stop.best == (Choice(pattern="a", point=point(unroll=1)), Choice(pattern=INDUCTOR, point=graph))
    _, moves = played(catalog(on), judged({"a": at(800)}))
    assert moves == ["a"]


def test_the_mode_that_is_ahead_is_the_one_that_is_judged_also_within_noise() -> None:
    """It was timed beside ours; seen ahead beyond noise it is taken unless its own judgement says the contrary."""
    near = replace(at(800, compiled=796), compile_mode="reduce-overhead")
    times = {"a": near, "reduce-overhead": at(796)}
    on = given("a", fused=("a",), modes=MODES)
    stop, moves = played(catalog(on), judged(times))
    assert moves == ["a", "reduce-overhead"] and stop.best == (Choice(pattern="a", point=point(unroll=1)),)
    times["a"] = replace(at(800, compiled=600), compile_mode="reduce-overhead")
    for theirs, taken in ((795, True), (900, False)):
        times["reduce-overhead"] = at(theirs)
        stop, moves = played(catalog(on), judged(times))
        assert moves == ["a", "reduce-overhead"] and stop.best is not None
        assert (inductor_mode(stop.best) == "reduce-overhead") is taken


def test_where_a_result_cannot_have_the_mode_that_is_ahead_our_cuda_graph_is_judged() -> None:
    """As where the module writes to its buffers."""
    graph = point(mode=CUDA_GRAPH)
    times = {"a": replace(at(800, compiled=300), compile_mode="reduce-overhead"), "cuda-graph": at(310)}
    stop, moves = played(catalog(given("a", fused=("a",), modes=(MODES[0], graph))), judged(times))
    assert moves == ["a", "cuda-graph"] and stop.best == (Choice(pattern=INDUCTOR, point=graph),)


def test_what_replays_a_cuda_graph_of_its_own_is_not_captured_in_another() -> None:
    on = given("a", fused=("a",), modes=MODES)
    on = replace(on, problem=replace(on.problem, target="cuda"))
    recipe = (Choice(pattern="a", point=()), Choice(pattern=INDUCTOR, point=MODES[1]))
    _, moves = played(handed_over(recipe, at(200), context=on, recorded=True), lambda move: None)
    assert moves == []
    _, moves = played(handed_over(recipe[:1], at(200), context=on, recorded=True), lambda move: None)
    assert moves == [Capture.__name__.lower()]


def test_without_time_only_the_promise_not_to_be_behind_torch_compile_is_kept() -> None:
    on = given("a", "i0", fused=("a",))
    recipe = (Choice(pattern="a", point=point(unroll=1)),)
    for compiled, expected in ((900.0, []), (400.0, [INDUCTOR])):
        steps = handed_over(recipe, at(800, compiled=compiled), context=on, has_time=lambda: False)
        _, moves = played(steps, judged({"default": at(400)}))
        assert moves == expected


def test_a_brief_of_an_older_journal_has_the_moves_that_it_had() -> None:
    old = given("a", "i0", fused=("a",), modes=())
    _, moves = played(catalog(old), judged({"a": at(800, compiled=400)}))
    assert moves == ["a"]
    assert played(catalog(given("i0", modes=())), judged({}))[1] == []


# ---- libraries in catalog


def called(*nodes: str, backends: tuple[str, ...] = ("default",), name: str = "library_0") -> Choice:
    code = Candidate(files=(SourceFile(path="model.py", text=name),), language=LIBRARY)
    region = Region(nodes=nodes, inputs=("x",), outputs=nodes[-1:])
    points = tuple(point(backend=b) for b in backends)
    return Choice(
        pattern=name, point=points[0], written=Written(title=name, candidate=code, regions=(region,), points=points)
    )


def of_libraries(move: Move) -> Outcome:
    if isinstance(move, Tune):
        times = [Interval(low=1, mid=9 - i, high=9) for i in range(len(move.points))]
        return Tuned(points=tuple(PointTime(point=p, time_ns=t) for p, t in zip(move.points, times, strict=True)))
    assert isinstance(move, Try) and isinstance(move.what, tuple)
    return at(900 - 300 * sum(dict(c.point).get("backend") == "cudnn" for c in move.what))


@pytest.mark.parametrize("fused", [("softmax",), ()])
def test_a_librarys_call_takes_the_place_of_what_it_overlaps_with_at_its_fastest_backend(
    fused: tuple[str, ...],
) -> None:
    call = called("mm", "softmax", "bmm", backends=("default", "cudnn"))
    on = given("mm", "softmax", "bmm", fused=fused, modes=(), libraries=(call,))
    stop, moves = played(catalog(on), of_libraries)
    assert moves == [*fused, "tune library_0", "library_0:cudnn"]
    assert stop.best == (replace(call, point=point(backend="cudnn")),)


def test_a_librarys_call_that_is_not_faster_is_left_and_one_elsewhere_stands_beside_patterns() -> None:
    on = given("softmax", "bmm", fused=("softmax",), modes=(), libraries=(called("softmax"),))
    stop, moves = played(catalog(on), of_libraries)
    assert moves == ["softmax", "library_0:default"] and stop.best == (
        Choice(pattern="softmax", point=point(unroll=1)),
    )
    both = replace(on, libraries=(called("bmm", backends=("cudnn",)),))
    stop, moves = played(catalog(both), of_libraries)
    assert moves == ["softmax", "softmax library_0:cudnn"] and stop.best is not None and len(stop.best) == 2


def test_the_module_as_algebra_has_it_has_no_regions_of_the_modules_own() -> None:
    on = replace(given("a", libraries=(called("a"),)), rewritten=(Matched(case=0, patterns=(), unmatched=()),))
    assert on.with_algebra.libraries == ()


GRAPHS = (*MODES[:2], point(mode=CUDA_GRAPH))


def early(labels: int, refused: str = "", *, guess: bool = False) -> tuple[Stop, list[str]]:
    """A search whose time counts, of a module that launches so many kernels, with a pattern that may be a guess."""
    made = given(*(f"op{n}" for n in range(labels)), "a", fused=("a",), modes=GRAPHS, opened_s=5.0)
    space = replace(pattern("a", points=3).space, guess=guess)
    made = replace(made, problem=replace(made.problem, target="cuda"), matched=tuple(
        replace(m, patterns=tuple(replace(p, space=space) for p in m.patterns))
        for m in made.matched
    ))  # fmt: skip

    def judge(move: Move) -> Outcome:
        if isinstance(move, Tune):
            return Tuned(points=tuple(PointTime(point=p, time_ns=Interval(low=1, mid=1, high=1)) for p in move.points))
        assert isinstance(move, Try) and isinstance(move.what, tuple)
        mode = inductor_mode(move.what)
        return WRONG if mode == refused != "" else at({"": 900.0, CUDA_GRAPH: 500.0}.get(mode, 400.0), compiled=450.0)

    return played(catalog(made), judge)


def test_what_launches_many_kernels_is_one_cuda_graph_from_the_beginning() -> None:
    stop, moves = early(20)
    assert moves[:2] == ["a cuda-graph", "a reduce-overhead"], (
        "then Inductor's kernels for what is left, as a graph too"
    )
    assert stop.best is not None and inductor_mode(stop.best) == "reduce-overhead"
    assert early(3)[1][0] == "a", "few launches hide behind one another"


def test_a_guess_that_nothing_is_known_of_is_not_part_of_a_first_judgement_of_many_launches() -> None:
    _stop, moves = early(20, guess=True)
    assert moves[0] == "cuda-graph" and any(m.startswith("a ") for m in moves[1:]), "it is judged once it is tuned"
    assert early(3, guess=True)[1][0] == "a"


def test_where_it_can_not_be_one_graph_the_kernels_are_judged_without() -> None:
    stop, moves = early(20, refused=CUDA_GRAPH)
    assert moves[:2] == ["a cuda-graph", "a"] and stop.best is not None
    assert "a cuda-graph" not in moves[1:]
