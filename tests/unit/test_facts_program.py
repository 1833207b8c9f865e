"""facts.program: what a well-formed Program is, how it is cut into sweeps, and the traffic that it can't avoid."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.access import Position, Quotient
from tilewright.ir.program import Load, Operand, Output, Program, Reduction, Scan, Statement
from tilewright.ir.schedule import Schedule, scan_schedule, schedule
from tilewright.ir.validation import validate


def statement(result: str, op: str, *args: str | float) -> Statement:
    return Statement(result=result, op=op, args=args, dtype="f32")


def operand(name: str, *shape: int) -> Operand:
    return Operand(name=name, dtype="f32", shape=shape)


def output(name: str, *shape: int) -> Output:
    return Output(name=name, dtype="f32", shape=shape)


CHAIN = Program(
    domain=(6, 5),
    operands=(operand("x", 6, 5), operand("b", 1, 5)),
    body=(statement("y", "add", "x", "b"), statement("z", "maximum", "y", 0.0)),
    outputs=(output("z", 6, 5),),
)

SOFTMAX = Program(
    domain=(6, 5),
    reduced=(1,),
    operands=(operand("x", 6, 5), operand("t", 6, 1)),
    body=(
        statement("s", "mul", "x", 0.5),
        statement("u", "neg", "t"),
        Reduction(results=("m", "d"), op="softmax_stats", arg="s", dtype="f32"),
        statement("r", "reciprocal", "d"),
        statement("c", "sub", "s", "m"),
        statement("e", "exp", "c"),
        statement("p", "mul", "e", "r"),
        Reduction(results=("q",), op="sum", arg="p", dtype="f32"),
        statement("v", "mul", "q", "u"),
    ),
    outputs=(output("p", 6, 5), output("v", 6, 1)),
)


SCAN = Program(
    domain=(6, 5),
    reduced=(1,),
    operands=(operand("x", 6, 5), operand("t", 6, 1)),
    body=(
        statement("u", "neg", "t"),
        statement("a", "mul", "x", "u"),
        Scan(results=("c",), op="cumsum", args=("a",), dim=1, dtype="f32"),
        statement("y", "sub", "c", "a"),
    ),
    outputs=(output("y", 6, 5),),
)


def names(statements: tuple[Statement, ...]) -> list[str]:
    return [s.result for s in statements]


WINDOWS = Program(  # maxima of 3 of 9 padded positions, two apart
    domain=(4, 3, 5),
    reduced=(1,),
    operands=(Operand(name="x", dtype="f32", shape=(4, 9), indexed=True), operand("b", 4, 1, 1)),
    body=(
        Load(result="w", source="x", dtype="f32", fill=0.0, at=(
            Position(steps=((0, 1),)), Position(start=-1, steps=((1, 1), (2, 2))))),
        statement("i", "inside", "w"),
        statement("s", "add", "w", "b"),
        Reduction(results=("m",), op="max", arg="s", dtype="f32"),
    ),
    outputs=(output("m", 4, 1, 5),),
)  # fmt: skip


class TestLoad:
    def test_it_is_an_element_where_its_positions_move_along_the_row(self) -> None:
        validate(WINDOWS)
        plan = schedule(WINDOWS)
        assert names(plan.passes[0].elements) == ["w", "s"] and plan.row_names == {"b", "m"}
        assert WINDOWS.aligned("w") == (4, 3, 5) and WINDOWS.aligned("m") == (4, 1, 5)
        once = replace(WINDOWS.loads[0], at=(Position(steps=((0, 1),)), Position(steps=((2, 1),))))
        still = replace(WINDOWS, body=(once, *WINDOWS.body[2:]))
        assert names(schedule(still).head) == ["w", "s"] and still.aligned("w") == (4, 1, 5)

    def test_where_it_comes_to(self) -> None:
        reach = [p.span(WINDOWS.domain) for p in WINDOWS.loads[0].at]
        assert reach == [(0, 3), (-1, 9)]
        assert Position(start=4, steps=((2, -1),)).span(WINDOWS.domain) == (0, 4)
        assert Position(start=4, steps=((2, -1),)).surely_inside(5, WINDOWS.domain)
        assert not Position(value="v").surely_inside(5, WINDOWS.domain)

    def test_traffic_is_no_more_than_is_asked_for(self) -> None:
        assert WINDOWS.traffic_bytes == 4 * (4 * 9 + 4 + 4 * 5)
        far = replace(WINDOWS, operands=(replace(WINDOWS.operands[0], shape=(4, 900)), WINDOWS.operands[1]))
        assert far.traffic_bytes == 4 * (4 * 3 * 5 + 4 + 4 * 5)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"fill": None}, "'w': what is read outside of 'x'"),
            ({"source": "b"}, "'w': 'b' is no indexed operand"),
            ({"at": (Position(),)}, "'w': 1 positions in f32 for \\(4, 9\\) f32"),
            ({"dtype": "f16"}, "'w': 2 positions in f16"),
            ({"at": (Position(), Position(steps=((3, 1),)))}, "are not steps along distinct dimensions"),
            ({"at": (Position(), Position(steps=((1, 1), (1, 2))))}, "are not steps along distinct dimensions"),
            ({"at": (Position(value="b"), Position())}, "'w': 'b' is no position but f32"),
            ({"at": (Quotient(each=2), Position())}, "a load reads at steps and values"),
            ({"at": (Position(value="s"), Position())}, "'s' is used before"),
        ],
    )
    def test_what_is_malformed(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            validate(replace(WINDOWS, body=(replace(WINDOWS.loads[0], **change), *WINDOWS.body[1:])))  # type: ignore[arg-type]

    def test_an_indexed_operand_is_read_by_loads_alone(self) -> None:
        with pytest.raises(ValueError, match="'x' is indexed"):
            validate(replace(WINDOWS, body=(*WINDOWS.body, statement("y", "exp", "x"))))
        with pytest.raises(ValueError, match="'s' is no load"):
            validate(replace(WINDOWS, body=(*WINDOWS.body, statement("y", "inside", "s"))))


class TestScan:
    def test_it_is_cut_before_and_after(self) -> None:
        validate(SCAN)
        plan = scan_schedule(SCAN)
        assert names(plan.head) == ["u"] and names(plan.before) == ["a"] and plan.scan is SCAN.scan
        assert names(plan.after) == ["a", "y"], "what the outputs need of the elements is computed again"
        assert plan.row_names == {"t", "u"}

    def test_it_has_a_schedule_of_its_own(self) -> None:
        with pytest.raises(ValueError, match="'c': a scan is cut by `scan_schedule`"):
            schedule(SCAN)
        with pytest.raises(ValueError, match="there is no scan"):
            scan_schedule(CHAIN)
        with pytest.raises(ValueError, match="output 'u' is at row level"):
            scan_schedule(replace(SCAN, outputs=(output("u", 6, 1),)))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"reduced": (0,)}, "'c': scans dimension 1, but \\(0,\\) are reduced"),
            ({"body": (Scan(results=("c",), op="sum", args=("x",), dim=1, dtype="f32"),)},
             "'c': 'sum' from 1 to 1 values is no scan"),
            ({"body": (Scan(results=("c",), op="cummax", args=("x",), dim=1, dtype="f32"),)},
             "'c': 'cummax' from 1 to 1 values is no scan"),
            ({"body": (*SCAN.body, replace(SCAN.body[2], results=("d",)))}, "'c': a scan stands with no reduction"),
            ({"body": (*SCAN.body, Reduction(results=("s",), op="sum", arg="a", dtype="f32"))},
             "'c': a scan stands with no reduction"),
            ({"body": (Scan(results=("c",), op="cumsum", args=("z",), dim=1, dtype="f32"),)}, "'z' is used before"),
        ],
    )  # fmt: skip
    def test_what_is_malformed(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            validate(replace(SCAN, outputs=(output("c", 6, 5),), **change))  # type: ignore[arg-type]


class TestSchedule:
    def test_a_pointwise_program_is_one_final_sweep(self) -> None:
        plan = schedule(CHAIN)
        assert plan.passes == () and plan.head == () and plan.row_outputs == ()
        assert names(plan.final) == ["y", "z"]
        assert plan.element_outputs == CHAIN.outputs and plan.row_names == frozenset()

    def test_chained_reductions_make_chained_sweeps(self) -> None:
        plan = schedule(SOFTMAX)
        assert names(plan.head) == ["u"]
        first, second = plan.passes
        assert names(first.elements) == ["s"] and [r.op for r in first.reductions] == ["softmax_stats"]
        assert names(first.rows) == ["r"]
        assert names(second.elements) == ["s", "c", "e", "p"], (
            "elements are computed again where a later sweep needs them"
        )
        assert [r.op for r in second.reductions] == ["sum"] and names(second.rows) == ["v"]
        assert names(plan.final) == ["s", "c", "e", "p"]
        assert [o.name for o in plan.element_outputs] == ["p"] and [o.name for o in plan.row_outputs] == ["v"]
        assert plan.row_names == {"t", "u", "m", "d", "r", "q", "v"}

    def test_reductions_of_one_stage_share_a_sweep(self) -> None:
        program = Program(
            domain=(4, 8),
            reduced=(1,),
            operands=(operand("x", 4, 8),),
            body=(
                Reduction(results=("a",), op="max", arg="x", dtype="f32"),
                Reduction(results=("b",), op="min", arg="x", dtype="f32"),
            ),
            outputs=(output("a", 4, 1), output("b", 4, 1)),
        )
        plan = schedule(program)
        assert [r.op for r in plan.passes[0].reductions] == ["max", "min"] and len(plan.passes) == 1
        assert plan.final == () and plan.element_outputs == ()

    def test_statements_that_nothing_needs_are_left_out(self) -> None:
        idle = replace(CHAIN, body=(*CHAIN.body, statement("unused", "exp", "x")))
        assert names(schedule(idle).final) == ["y", "z"]

    def test_the_position_along_a_kept_dimension_is_row_level(self) -> None:
        body = (
            Statement(result="i", op="index", args=(0,), dtype="i64"),
            Statement(result="j", op="index", args=(1,), dtype="i64"),
            Reduction(results=("a",), op="sum", arg="x", dtype="f32"),
        )
        program = Program(domain=(4, 8), reduced=(1,), operands=(operand("x", 4, 8),), body=body, outputs=())
        assert schedule(program).row_names == {"i", "a"}

    def test_operands_of_names_what_statements_read_in_the_programs_order(self) -> None:
        plan = schedule(CHAIN)
        assert [o.name for o in plan.operands_of(plan.final, CHAIN)] == ["x", "b"]
        assert [o.name for o in plan.operands_of((), CHAIN, "b")] == ["b"]


class TestValidate:
    @pytest.mark.parametrize("program", [CHAIN, SOFTMAX], ids=["pointwise", "rows"])
    def test_takes_what_is_well_formed(self, program: Program) -> None:
        validate(program)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"reduced": (2,)}, "reduced"),
            ({"reduced": (1, 1)}, "reduced"),
            ({"operands": (operand("x", 6, 5), operand("b", 2, 5))}, "'b'"),
            ({"operands": (operand("x", 6, 5), operand("b", 5))}, "'b'"),
            ({"operands": (operand("x", 6, 5), operand("x", 1, 5))}, "'x'"),
            ({"operands": (operand("x", 6, 5), Operand(name="b", dtype="f7", shape=(1, 5)))}, "f7"),
            ({"operands": (operand("not a name", 6, 5),)}, "not a name"),
            ({"body": (statement("z", "add", "x", "later"),)}, "later"),
            ({"body": (statement("z", "add", "x"),)}, "'z'"),
            ({"body": (statement("z", "no_such", "x"),)}, "no_such"),
            ({"body": (Reduction(results=("z",), op="sum", arg="x", dtype="f32"),)}, "sum"),
            ({"outputs": (output("w", 6, 5),)}, "'w'"),
            ({"outputs": (output("z", 6, 4),)}, "'z'"),
        ],
    )
    def test_names_what_is_wrong(self, change: dict[str, object], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            validate(replace(CHAIN, **change))

    def test_a_reduction_has_the_results_of_its_kind(self) -> None:
        short = Reduction(results=("m",), op="moments", arg="x", dtype="f32")
        with pytest.raises(ValueError, match="moments"):
            validate(replace(SOFTMAX, body=(short,), outputs=()))


def test_sizes() -> None:
    assert (CHAIN.rows, CHAIN.inner_size) == (30, 1)
    assert (SOFTMAX.rows, SOFTMAX.inner_size) == (6, 5)
    assert CHAIN.traffic_bytes == 4 * (30 + 5 + 30)
    half = replace(CHAIN, operands=(Operand(name="x", dtype="bf16", shape=(6, 5)), operand("b", 1, 5)))
    assert half.traffic_bytes == 2 * 30 + 4 * (5 + 30)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Well-formed row programs: random straight-line bodies of statements and reductions."""
    known = {"x": False, "row": True}  # name -> is it at row level
    body: list[Statement | Reduction] = []
    for number in range(draw(st.integers(1, 12))):
        pick = st.sampled_from(sorted(known))
        elements = sorted(n for n, is_row in known.items() if not is_row)
        if draw(st.booleans()):
            left, right = draw(pick), draw(pick)
            body.append(statement(f"v{number}", draw(st.sampled_from(["add", "mul", "sub"])), left, right))
            known[f"v{number}"] = known[left] and known[right]
        else:
            body.append(Reduction(results=(f"v{number}",), op="sum", arg=draw(st.sampled_from(elements)), dtype="f32"))
            known[f"v{number}"] = True
    outputs = draw(st.lists(st.sampled_from(sorted(set(known) - {"x", "row"})), min_size=1, unique=True))
    return Program(
        domain=(3, 7),
        reduced=(1,),
        operands=(operand("x", 3, 7), operand("row", 3, 1)),
        body=tuple(body),
        outputs=tuple(output(n, 3, 1 if known[n] else 7) for n in outputs),
    )


def run_in_order(plan: Schedule, program: Program) -> None:
    """Walk the sweeps as a renderer does; every name must be known when it is read."""
    rows = {o.name for o in program.operands if o.name in plan.row_names}
    loads = {o.name for o in program.operands} - rows

    def sweep(statements: tuple[Statement, ...], known: set[str]) -> set[str]:
        for item in statements:
            assert {a for a in item.args if isinstance(a, str)} <= known, item
            known = known | {item.result}
        return known

    rows = sweep(plan.head, rows)
    for level in plan.passes:
        elements = sweep(level.elements, rows | loads)
        assert all(r.arg in elements for r in level.reductions)
        rows = sweep(level.rows, rows | {n for r in level.reductions for n in r.results})
    elements = sweep(plan.final, rows | loads)
    assert {o.name for o in plan.element_outputs} <= elements
    assert {o.name for o in plan.row_outputs} <= rows


@given(programs())
def test_every_schedule_can_be_carried_out(program: Program) -> None:
    validate(program)
    plan = schedule(program)
    run_in_order(plan, program)
    placed = [r for p in plan.passes for r in p.reductions]
    assert sorted(r.results for r in placed) == sorted(r.results for r in program.body if isinstance(r, Reduction))
    order = {s.result: i for i, s in enumerate(program.body) if isinstance(s, Statement)}
    for statements in (plan.head, plan.final, *(p.elements for p in plan.passes), *(p.rows for p in plan.passes)):
        assert all(order[a.result] < order[b.result] for a, b in pairwise(statements))
