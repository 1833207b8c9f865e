"""Whose time a call's time is: shared calls, values that two patterns make, and the order of the parts."""

from __future__ import annotations

import pytest

from tilewright.facts.discovery import CallTime, Replayed, floor_of
from tilewright.facts.machine import Machine
from tilewright.facts.pattern import Match, Pattern
from tilewright.facts.problem import Work
from tilewright.facts.space import Space
from tilewright.ir.graph import Call, Graph, Node, Ref
from tilewright.ir.matrices import product_of
from tilewright.ir.program import Operand, Output, Program
from tilewright.search.discover import owners, parts

MACHINE = Machine(
    target="cpu", device="test", driver="", torch="", dsl="", processors=1, cache_bytes=0,
    copy_bytes_per_s=1e9, matmul_flops_per_s=(("f32", 1e9),),
)  # fmt: skip


def node(name: str, origin: str, *reads: str, size: int = 10, op: str = "neg") -> Node:
    return Node(name=name, op=op, shape=(size,), dtype="f32", args=reads, origin=origin)


def call(name: str, *, view: bool = False) -> Call:
    return Call(name=name, target=f"aten.{name}.default", args=(Ref(name="x"),), results=(name,), view=view)


GRAPH = Graph(
    nodes=(
        Node(name="x", op="input", shape=(10,), dtype="f32"), node("inner", "a", "x", size=30), node("a", "a", "inner"),
        node("b", "b", "a"), node("c", "c", "b", op="call"), node("v", "v", "c", op="reshape"),
    ),
    outputs=("v",), calls=(call("a"), call("b"), call("c"), call("v", view=True)),
)  # fmt: skip


def pattern(id: str, *nodes: str, size: int, matches: int = 1) -> Pattern:
    tensors = {"dtype": "f32", "shape": (size,)}
    program = Program(
        domain=(size,), operands=(Operand(name="x0", **tensors),), body=(), outputs=(Output(name="x0", **tensors),)  # type: ignore[arg-type]
    )  # fmt: skip
    site = Match(nodes=nodes, operands=(), outputs=())
    return Pattern(
        id=id, title=id, kind="pointwise", nodes=nodes, program=program, space=Space(knobs=(), points=((),)),
        matches=(site,) * matches,
    )  # fmt: skip


def replay(**times: float) -> Replayed:
    work = Work(bytes_read=5, bytes_written=5, matmul_flops=0, conv_flops=0, dtype="f32")
    calls = tuple(CallTime(call=name, ns=ns, work=work) for name, ns in times.items())
    return Replayed(calls=calls, module_ns=2000.0, rounds=1)


def test_a_call_is_shared_by_the_bytes_that_each_pattern_makes_of_it() -> None:
    found = owners(GRAPH, [pattern("p", "inner", size=1), pattern("q", "a", "b", size=1)], {})
    assert found == {"a": {"p": 0.75, "q": 0.25}, "b": {"q": 1.0}, "c": {"": 1.0}, "v": {"": 1.0}}
    assert owners(GRAPH, [pattern("p", "inner", size=1)], {"a": "no"})["a"] == {"p": 0.75, "": 0.25}, "torch has some"
    assert owners(GRAPH, [pattern("p", "inner", size=1)], {})["a"] == {"p": 1.0}, "what is not left is in the pattern"


def test_of_two_makers_the_later_one_counts() -> None:
    assert owners(GRAPH, [pattern("p", "b", size=1), pattern("q", "b", size=1)], {})["b"] == {"q": 1.0}


def test_parts_stand_in_the_order_of_what_they_can_win() -> None:
    patterns = [pattern("p", "inner", "a", size=10, matches=2), pattern("q", "b", size=50)]
    found = parts(
        GRAPH, patterns, {"c": "no skeleton"}, replay=replay(a=200.0, b=500.0, c=100.0, v=20.0), machine=MACHINE,
        rule=lambda p: f"rule of {p.id}",
    )  # fmt: skip
    assert [(p.pattern or p.title, p.why or p.rule) for p in found] == [
        ("q", "rule of q"), ("c", "no skeleton"), ("p", "rule of p"), ("views", "they move no data"),
    ]  # fmt: skip
    by = {p.pattern or p.title: p for p in found}
    assert by["p"].floor_ns == 2 * 80 and by["p"].distance == pytest.approx(0.2), "80 bytes at each of two matches"
    assert by["p"].gain == pytest.approx(0.1 * 0.2) and by["q"].gain == pytest.approx(0.25 * 0.2)
    assert by["c"].gain == pytest.approx(0.05 * 0.9), "the floor of an operator is that of what it reads and writes"


def test_the_floor_of_a_product_counts_its_flops() -> None:
    left = Operand(name="l", dtype="f32", shape=(8, 100), indexed=True)
    right = Operand(name="r", dtype="f32", shape=(100, 4), indexed=True)
    program = Program(
        domain=(8, 4),
        operands=(left, right),
        body=(product_of("y", left, right, domain=(8, 4), dtype="f32"),),
        outputs=(Output(name="y", dtype="f32", shape=(8, 4)),),
    )
    found = Pattern(id="p", title="mm", kind="product", nodes=(), program=program, space=Space(knobs=(), points=((),)))
    assert floor_of(found, MACHINE) == pytest.approx(2 * 8 * 4 * 100)
