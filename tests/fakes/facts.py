"""Small facts to build runs from, without a torch in sight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Built, Checked, Interval, OutputError, PointTime, Timed
from tilewright.facts.pattern import Choice, Pattern
from tilewright.facts.problem import Problem, TensorSpec, Work
from tilewright.facts.realised import Realised
from tilewright.facts.run import CaseFacts, Matched, SearchContext
from tilewright.facts.space import Knob, Point, Space, point
from tilewright.facts.version import VERSION
from tilewright.facts.winner import Winner, toolchain
from tilewright.ir.program import Operand, Output, Program, Statement
from tilewright.realise.digests import skeleton_digests

MACHINE = Machine(
    target="cpu", device="test", driver="-", torch="0", dsl="-", processors=2, cache_bytes=1 << 20,
    copy_bytes_per_s=1e10, matmul_flops_per_s=(("f32", 1e11),),
)  # fmt: skip
VERSIONS = (("tilewright", VERSION), *skeleton_digests("cpu"))
TOOLCHAIN = toolchain(MACHINE, tilewright=VERSION)
OF_WINNERS = replace(TOOLCHAIN, tilewright=f"{VERSION} {dict(VERSIONS)['kernels']}")
WON = point(threads=256, vector=4, layout="rows", split=True)
PROBLEM = Problem(name="toy", path="/nowhere/toy.py", source="pass\n", target="cpu")
PROGRAM = Program(
    domain=(4, 8),
    operands=(Operand(name="x", dtype="f32", shape=(4, 8)),),
    body=(Statement(result="y", op="neg", args=("x",), dtype="f32"),),
    outputs=(Output(name="y", dtype="f32", shape=(4, 8)),),
)


def pattern(id: str, *, points: int = 2, title: str = "") -> Pattern:
    values = tuple(range(1, points + 1))
    space = Space(knobs=(Knob(name="unroll", values=values, about=""),), points=tuple(point(unroll=v) for v in values))
    return Pattern(id=id, title=title or id, kind="pointwise", nodes=(id,), program=PROGRAM, space=space)


def context(
    *patterns: Pattern, budget_s: float = 1000.0, remembered: tuple[Any, ...] = (), hinted: tuple[Any, ...] = ()
) -> SearchContext:
    spec = TensorSpec(shape=(4, 8), stride=(8, 1), dtype="f32")
    work = Work(bytes_read=128, bytes_written=128, matmul_flops=0, conv_flops=0, dtype="f32")
    case = CaseFacts(inputs=(spec,), outputs=(spec,), work=work, graph=None)
    return SearchContext(
        run="r", problem=PROBLEM, machine=MACHINE, strategy="catalog", seed=0, budget_s=budget_s, cases=(case,),
        matched=(Matched(case=0, patterns=patterns, unmatched=()),), remembered=remembered, hinted=hinted,
    )  # fmt: skip


def timed(ratio: float, *, noise: float = 0.01, candidate_id: str = "c") -> Timed:
    error = OutputError(case=0, family="own", output=0, norm=1e-7, worst=1e-7, allowed_norm=2e-7, allowed_worst=2e-7)
    spread = Interval(low=ratio * (1 - noise), mid=ratio, high=ratio * (1 + noise))
    return Timed(
        checked=Checked(built=Built(candidate_id=candidate_id, build_s=0.1, protections=()), errors=(error,)),
        times_ns=(("ours", Interval(low=99.0, mid=100.0, high=101.0)),),
        ratios=(("eager", spread),),
        samples=(),
        floor_ns=50.0,
        bytes_moved=256,
        flops=0,
    )


def winner(point: Point = WON, **changes: object) -> Winner:
    """A winner of MACHINE with its evidence: the point, and one that was slower."""
    slower = PointTime(point=(("threads", 999),), time_ns=Interval(low=199.0, mid=200.0, high=201.0))
    whole = Winner(
        target=MACHINE.target, device=MACHINE.device, toolchain=OF_WINNERS, shape_class="s", title="scale -> softmax",
        point=point, tried=(PointTime(point=point, time_ns=Interval(low=99.0, mid=100.0, high=101.0)), slower),
        floor_share=0.5, found_at="2026-11-21T20:15:00+00:00",
    )  # fmt: skip
    return replace(whole, **changes)  # type: ignore[arg-type]


def realised(**changes: object) -> Realised:
    """What solves PROBLEM on MACHINE, judged there: one fused pattern at its first point."""
    whole = Realised(
        key="c0ffee", title="scale -> softmax", problem=replace(PROBLEM, path=""),
        what=(Choice(pattern="fused_0", point=point(unroll=1)),), model="", device=MACHINE.device, toolchain=TOOLCHAIN,
        ratio=Interval(low=1.9, mid=2.0, high=2.1), time_ns=Interval(low=99.0, mid=100.0, high=101.0), floor_share=0.5,
        error=0.25, run="r", journal="/runs/r/run.db", found_at="2026-11-21T20:15:00+00:00",
    )  # fmt: skip
    return replace(whole, **changes)  # type: ignore[arg-type]
