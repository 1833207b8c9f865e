"""Runs as a journal would hold them, for the report's tests: one that improves, one refused, one with nothing to do."""

from __future__ import annotations

from dataclasses import replace

from tilewright.facts.machine import Machine
from tilewright.facts.move import Event, Move, Outcome, Stop, Try, Tune
from tilewright.facts.outcome import Built, Checked, Failure, Interval, OutputError, PointTime, Samples, Timed, Tuned
from tilewright.facts.pattern import Choice, Match, Pattern
from tilewright.facts.problem import Problem, TensorSpec, Work
from tilewright.facts.run import CaseFacts, Matched, SearchContext
from tilewright.facts.space import Knob, Space, point
from tilewright.ir.graph import Call, Graph, Node, Ref
from tilewright.ir.program import Operand, Output, Program, Statement

SHAPE = (4096, 16384)
MACHINE = Machine(
    target="cuda", device="NVIDIA H200", driver="580.65", torch="2.11.0+cu130", dsl="4.8.1", processors=132,
    cache_bytes=60 << 20, copy_bytes_per_s=4.25e12, matmul_flops_per_s=(("bf16", 780e12), ("f32", 51e12)),
)  # fmt: skip


def near(mid: float, spread: float = 0.01) -> Interval:
    return Interval(low=mid * (1 - spread), mid=mid, high=mid * (1 + spread))


def node(name: str, op: str, *reads: str, origin: str = "") -> Node:
    path = {"input": name, "state": "norm.weight"}.get(op, "")
    return Node(name=name, op=op, shape=SHAPE, dtype="f32", args=reads, path=path, origin=origin)


GRAPH = Graph(
    nodes=(
        node("x", "input"), node("weight", "state"), node("mm", "call", origin="call_0"),
        node("scaled", "mul", "mm", "x"), node("shifted", "add", "scaled", "weight"),
        node("gate", "sigmoid", "shifted"), node("y", "mul", "shifted", "gate"),
        node("sorted", "call", origin="call_1"),
    ),
    outputs=("sorted",),
    calls=(
        Call(name="call_0", target="aten.mm.default", args=(Ref(name="x"), Ref(name="weight")), results=("mm",)),
        Call(name="call_1", target="aten.sort.default", args=(Ref(name="y"),), results=("sorted",)),
    ),
)  # fmt: skip
PROGRAM = Program(
    domain=SHAPE,
    operands=(Operand(name="a", dtype="f32", shape=SHAPE),),
    body=(Statement(result="b", op="sigmoid", args=("a",), dtype="f32"),),
    outputs=(Output(name="b", dtype="f32", shape=SHAPE),),
)
NODES = ("scaled", "shifted", "gate", "y")
FUSED = Pattern(
    id="fused_0", title="scale -> shift -> silu", kind="pointwise", nodes=NODES, program=PROGRAM,
    space=Space(knobs=(Knob(name="threads", values=(128, 256), about=""),),
                points=(point(threads=256), point(threads=128))),
    matches=(Match(nodes=NODES, operands=(), outputs=()),),
)  # fmt: skip
RECIPE = (Choice(pattern="fused_0", point=point(threads=256)),)
SPEC = TensorSpec(shape=SHAPE, stride=(16384, 1), dtype="f32")
WORK = Work(bytes_read=1 << 29, bytes_written=1 << 28, matmul_flops=0, conv_flops=0, dtype="f32")


def context(name: str = "gated_shift", **changes: object) -> SearchContext:
    case = CaseFacts(inputs=(SPEC,), outputs=(SPEC,), work=WORK, graph=GRAPH)
    untraced = CaseFacts(inputs=(SPEC,), outputs=(SPEC,), work=WORK, graph=None, trace_failure="data-dependent shape")
    problem = Problem(name=name, path="/p.py", source="pass\n", target="cuda", cases=('{"rows": 4096}', '{"rows": 1}'))
    whole = SearchContext(
        run="r42", problem=problem, machine=MACHINE, strategy="catalog", seed=0, budget_s=300.0, cases=(case, untraced),
        matched=(Matched(case=0, patterns=(FUSED,), unmatched=("aten.sort.default: no skeleton",)),
                 Matched(case=1, patterns=(), unmatched=())),
        remembered=(), versions=(("python", "3.12.3"), ("g++", "")),
    )  # fmt: skip
    return replace(whole, **changes)  # type: ignore[arg-type]


def timed(ratio: float = 1.3, spread: float = 0.01, **changes: object) -> Timed:
    errors = tuple(
        OutputError(case=c, family=f, output=0, norm=n, worst=n * 3, allowed_norm=4e-7, allowed_worst=2e-6)
        for c, f, n in ((0, "own", 1e-7), (0, "wide exponents", 3e-7), (1, "own", 2e-8))
    )
    built = Built(candidate_id="c1", build_s=1.5, protections=("own process group", "rlimits"),
                  missing_protections=("Landlock",))  # fmt: skip
    ours, eager = 200e3, 200e3 * ratio
    whole = Timed(
        checked=Checked(built=built, errors=errors),
        times_ns=(
            ("ours", near(ours)),
            ("eager", near(eager)),
            ("compile", near(ours * 1.1)),
            ("eager_again", near(eager)),
        ),
        ratios=(("eager", near(ratio, spread)), ("compile", near(1.1)), ("aa", near(1.0, 0.004))),
        samples=(
            Samples(name="ours", bursts_ns=tuple((ours * (1 + 0.01 * (i % 5 - 2)),) for i in range(60))),
            Samples(name="eager", bursts_ns=((eager, eager * 1.1), ())),
        ),
        floor_ns=150e3,
        bytes_moved=3 << 28,
        flops=10**9,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def events(*pairs: tuple[Move, Outcome]) -> tuple[Event, ...]:
    return tuple(Event(seq=i, move=move, outcome=outcome, wall_s=1.5) for i, (move, outcome) in enumerate(pairs))


REFUSAL = Failure(
    stage="check", reason="wrong_values", summary="output 0 is off by 3.0", excerpt="Traceback\n  <boom>\n"
)
TUNE = Tune(recipe=RECIPE, pattern="fused_0", points=FUSED.space.points)
TUNED = Tuned(
    points=(
        PointTime(point=point(threads=256), time_ns=near(200e3)),
        PointTime(point=point(threads=128), time_ns=near(230e3)),
        PointTime(point=point(threads=64), time_ns=None, failure="does not compile"),
    )
)
IMPROVED = events(
    (TUNE, TUNED),
    (Try(what=RECIPE, why="1 pattern(s) fused"), timed()),
    (Try(what=(), why="without fused_0: what is its share?"), timed(1.0)),
    (Stop(best=RECIPE, why="1.30x of eager"), None),
)
SLOWER = events(
    (Try(what=RECIPE, why="1 pattern(s) fused"), timed(1.005)),
    (Stop(best=None, why="the fused module is not faster than eager beyond noise"), None),
)
REFUSED = events(
    (Try(what=RECIPE, why="1 pattern(s) fused"), REFUSAL), (Stop(best=None, why="the judge accepted none"), None)
)
NOTHING = events((Stop(best=None, why="no pattern matched"), None))
