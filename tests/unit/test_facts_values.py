"""What facts compute: ids, digests, floors, intervals and the defaults that others lean on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import HarnessError, TilewrightError, UserError
from tilewright.facts.machine import LEAST_CALL_NS, Machine
from tilewright.facts.outcome import Built, Checked, Interval, OutputError, Samples, Timed
from tilewright.facts.pattern import Pattern
from tilewright.facts.problem import Problem, Work
from tilewright.facts.space import Space, point
from tilewright.ir.program import Operand, Output, Program, Statement

MODEL = SourceFile(path="model.py", text="class ModelNew: ...\n")
KERNEL = SourceFile(path="fused_0.py", text="KNOBS = {}\n")

GPU = Machine(
    target="cuda",
    device="a GPU",
    driver="580",
    torch="2.13.0",
    dsl="4.8.1",
    processors=100,
    cache_bytes=50_000_000,
    copy_bytes_per_s=4e12,
    matmul_flops_per_s=(("f32", 50e12), ("f32_split", 200e12), ("bf16", 800e12)),
)
WORK = Work(bytes_read=3_000_000_000, bytes_written=1_000_000_000, matmul_flops=0, conv_flops=0, dtype="f32")


class TestCandidateId:
    def test_does_not_depend_on_the_order_of_files(self) -> None:
        assert Candidate(files=(MODEL, KERNEL)).id == Candidate(files=(KERNEL, MODEL)).id

    @pytest.mark.parametrize(
        "other",
        [
            Candidate(files=(MODEL,)),
            Candidate(files=(MODEL, replace(KERNEL, text="KNOBS = {'a': 1}\n"))),
            Candidate(files=(MODEL, replace(KERNEL, path="fused_1.py"))),
            Candidate(files=(MODEL, KERNEL), entry="fused_0.py"),
            Candidate(files=(MODEL, KERNEL), language="cpp"),
        ],
    )
    def test_changes_with_all_that_changes_behaviour(self, other: Candidate) -> None:
        assert other.id != Candidate(files=(MODEL, KERNEL)).id

    def test_is_short_hex_and_stays_what_it_was(self) -> None:
        assert Candidate(files=(MODEL, KERNEL)).id == "ecef46a55371796c"

    @given(st.text(), st.text())
    def test_text_can_not_be_moved_between_files_unseen(self, left: str, right: str) -> None:
        one = Candidate(files=(SourceFile(path="a", text=left), SourceFile(path="b", text=right)))
        two = Candidate(files=(SourceFile(path="a", text=left + right), SourceFile(path="b", text="")))
        assert (one.id == two.id) == (right == "")


class TestFloor:
    def test_bound_by_memory(self) -> None:
        assert GPU.floor_ns(WORK) == pytest.approx(1e6)

    def test_bound_by_arithmetic_at_the_best_rate_of_that_accuracy(self) -> None:
        assert GPU.floor_ns(replace(WORK, matmul_flops=10**12)) == pytest.approx(5e6)
        assert GPU.floor_ns(replace(WORK, matmul_flops=10**12, conv_flops=10**12, dtype="bf16")) == pytest.approx(2.5e6)

    def test_a_rate_that_was_not_measured_counts_as_the_fastest(self) -> None:
        assert GPU.rate("f16") == 800e12 and GPU.rate("float8_e4m3fn") == 1600e12

    @given(st.integers(0, 10**11), st.integers(0, 10**11), st.integers(0, 10**15))
    def test_the_impossible_lies_below_the_floor(self, read: int, written: int, flops: int) -> None:
        work = replace(WORK, bytes_read=read, bytes_written=written, matmul_flops=flops)
        assert LEAST_CALL_NS <= GPU.impossible_ns(work) <= max(GPU.floor_ns(work), LEAST_CALL_NS)

    def test_what_fits_in_the_cache_can_be_as_fast_as_an_empty_call(self) -> None:
        assert GPU.impossible_ns(replace(WORK, bytes_read=90_000_000, bytes_written=10_000_000)) == LEAST_CALL_NS
        assert GPU.impossible_ns(WORK) == pytest.approx((4e9 - 1e8) / 4e12 / 1.15 * 1e9)

    def test_no_cache_is_faster_than_twice_what_was_measured_of_it(self) -> None:
        small = replace(WORK, bytes_read=90_000_000, bytes_written=10_000_000)
        within = replace(GPU, cache_bytes_per_s=20e12)
        assert within.impossible_ns(small) > LEAST_CALL_NS
        assert within.impossible_ns(small) == pytest.approx(0.5 * 1e8 / 20e12 / 1.15 * 1e9)
        assert within.impossible_ns(WORK) == GPU.impossible_ns(WORK)
        slow = replace(GPU, cache_bytes_per_s=1e9)
        assert slow.impossible_ns(small) <= slow.floor_ns(small), "what memory can do, caches can"

    def test_the_key_names_what_winners_depend_on(self) -> None:
        assert GPU.key == replace(GPU, copy_bytes_per_s=1.0, processors=1).key
        assert (
            len({GPU.key, *(replace(GPU, **{f: "x"}).key for f in ("target", "device", "driver", "torch", "dsl"))}) == 6
        )


class TestProblem:
    problem = Problem(name="p", path="/a/p.py", source="class Model: ...", target="cpu")

    def test_digest_ignores_the_place_and_sees_the_rest(self) -> None:
        assert self.problem.digest == replace(self.problem, path="/b/q.py", name="q").digest
        changes: list[dict[str, object]] = [
            {"source": ""},
            {"target": "cuda"},
            {"precision": "tf32"},
            {"cases": ('{"n":1}',)},
        ]
        assert len({self.problem.digest, *(replace(self.problem, **c).digest for c in changes)}) == 5


class TestOutcome:
    def test_the_worst_error_is_the_one_nearest_its_allowance(self) -> None:
        fine = OutputError(case=0, family="own", output=0, norm=5e-7, worst=1e-6, allowed_norm=1e-6, allowed_worst=1e-5)
        near = replace(fine, case=1, norm=1e-7, worst=9e-6)
        built = Built(candidate_id="c", build_s=0.1, protections=())
        assert Checked(built=built, errors=(fine, near)).worst_error is near
        assert Checked(built=built, errors=()).worst_error is None

    def test_times_and_ratios_by_name(self) -> None:
        built = Built(candidate_id="c", build_s=0.1, protections=())
        mine, ratio = Interval(low=1.0, mid=2.0, high=3.0), Interval(low=1.1, mid=1.2, high=1.3)
        timed = Timed(
            checked=Checked(built=built, errors=()),
            times_ns=(("ours", mine),),
            ratios=(("eager", ratio),),
            samples=(),
            floor_ns=1.0,
            bytes_moved=1,
            flops=0,
        )
        assert timed.time("ours") == mine and timed.time("compile") is None
        assert timed.ratio("eager") == ratio and timed.ratio("aa") is None

    @pytest.mark.parametrize(
        ("low", "again", "resolution_ns", "doubt"),
        [
            (1.05, 1.0, 0.0, ""),
            (1.009, 1.0, 0.0, "the interval does not lie above 1"),  # by more than two equal processes may differ
            (1.05, 0.94, 0.0, "eager differs from itself by 6% in the same rounds"),
            (1.05, 1.0, 6.0, "two processes that run the same code differ by as much"),  # 5 of 100 ns
            (1.07, 1.0, 6.0, ""),
        ],
    )
    def test_a_gain_is_claimed_beyond_all_noise(
        self, low: float, again: float, resolution_ns: float, doubt: str
    ) -> None:
        timed = Timed(
            checked=Checked(built=Built(candidate_id="c", build_s=0.1, protections=()), errors=()),
            times_ns=(("ours", Interval(low=99.0, mid=100.0, high=101.0)),),
            ratios=(
                ("eager", Interval(low=low, mid=low + 0.01, high=low + 0.02)),
                ("aa", Interval(low=again - 0.01, mid=again, high=again + 0.01)),
            ),
            samples=(), floor_ns=1.0, bytes_moved=1, flops=0, resolution_ns=resolution_ns,
        )  # fmt: skip
        assert timed.doubt("eager") == doubt and timed.faster_than("eager") is (not doubt)
        assert not timed.faster_than("compile")
        hidden = replace(timed, undecided=True)
        assert not hidden.faster_than("eager")
        assert doubt or hidden.doubt("eager") == "noise hid whether it works on what it kept of earlier calls"

    @pytest.mark.parametrize(("eager_ns", "claimed"), [((300.0, 106.0), True), ((300.0, 104.0), False)])
    def test_a_baseline_that_was_held_back_for_a_while_is_no_gain(
        self, eager_ns: tuple[float, float], claimed: bool
    ) -> None:
        bursts = {"ours": (102.0, 100.0), "eager": eager_ns}
        timed = Timed(
            checked=Checked(built=Built(candidate_id="c", build_s=0.1, protections=()), errors=()),
            times_ns=(("ours", Interval(low=100.0, mid=101.0, high=102.0)),),
            ratios=(("eager", Interval(low=2.0, mid=2.5, high=3.0)), ("aa", Interval(low=0.9, mid=1.05, high=1.1))),
            samples=tuple(Samples(name=n, bursts_ns=tuple((b, b, 9 * b) for b in ns)) for n, ns in bursts.items()),
            floor_ns=1.0, bytes_moved=1, flops=0,
        )  # fmt: skip
        assert timed.faster_than("eager") is claimed


def test_points_are_equal_whatever_the_order_of_their_knobs() -> None:
    assert point(vec=4, threads=256) == point(threads=256, vec=4) == (("threads", 256), ("vec", 4))


def test_shape_class_forgets_names_and_keeps_shapes_and_operations() -> None:
    def pattern(name: str, op: str, width: int) -> Pattern:
        program = Program(
            domain=(8, width),
            operands=(Operand(name=name, dtype="f32", shape=(8, width)),),
            body=(Statement(result=f"{name}_y", op=op, args=(name,), dtype="f32"),),
            outputs=(Output(name=f"{name}_y", dtype="f32", shape=(8, width)),),
        )
        space = Space(knobs=(), points=((),))
        return Pattern(id=name, title=op, kind="pointwise", nodes=(name,), program=program, space=space)

    assert pattern("a", "exp", 16).shape_class == pattern("b", "exp", 16).shape_class
    assert len({pattern("a", op, width).shape_class for op in ("exp", "log") for width in (16, 17)}) == 4


def test_errors_have_one_base_and_two_kinds() -> None:
    assert issubclass(UserError, TilewrightError) and issubclass(HarnessError, TilewrightError)
    assert not issubclass(UserError, HarnessError)


def test_a_problem_tells_which_packages_its_file_imports() -> None:
    source = "import os, numpy.linalg as la\nimport torch.nn as nn\nfrom pkg.sub import x\nfrom . import beside\n"
    source += "def f():\n    import hidden\n"
    problem = Problem(name="p", path="/a/p.py", source=source, target="cpu")
    assert problem.imports == ("numpy.linalg", "pkg.sub")
    assert replace(problem, environment=(("A", "1"),)).imports == (), "a variable may steer an import"
    assert replace(problem, source="def f(:").imports == ()
