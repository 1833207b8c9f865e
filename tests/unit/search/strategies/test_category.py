"""The kind of work is read from the graph; every kind has its prompt, on both targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.facts import context
from tilewright.ir.graph import Call, Graph, Node, Ref
from tilewright.search.strategies.asking import Author
from tilewright.search.strategies.category import CATEGORIES, category, is_depthwise


def node(name: str, op: str, shape: tuple[int, ...], *args: str, dims: tuple[int, ...] = ()) -> Node:
    origin = "" if op == "input" else f"c_{name}"
    return Node(name=name, op=op, shape=shape, dtype="f32", args=args, dims=dims, origin=origin)


X = node("x", "input", (8, 16))
EXP = node("e", "exp", (8, 16), "x")
ROW = node("r", "sum", (8,), "e", dims=(1,))
COLUMN = node("k", "sum", (16,), "e", dims=(0,))
SCAN = node("s", "cumsum", (8, 16), "x", dims=(1,))


def calls(*labels: str) -> tuple[Call, ...]:
    return tuple(Call(name=f"c{i}", target=f"aten.{n}.default", args=(), results=()) for i, n in enumerate(labels))


def product(name: str) -> Node:
    return node(name, "call", (8, 8))


@pytest.mark.parametrize(
    ("kind", "nodes", "labels"),
    [
        ("pointwise", (X, EXP), ("exp",)),
        ("row_reduction", (X, EXP, ROW), ("exp", "sum")),
        ("column_reduction", (X, EXP, COLUMN), ("exp", "sum")),
        ("mixed", (X, EXP, COLUMN, ROW), ("exp", "sum", "sum")),
        ("loss", (X, EXP, node("l", "sum", (), "e", dims=(0, 1))), ("exp", "sum")),
        ("scan", (X, SCAN), ("cumsum",)),
        ("scan", (X, EXP, ROW, SCAN), ("exp", "sum", "cumsum")),
        ("scan", (X, EXP, COLUMN), ("sigmoid", *["select", "mul", "add"] * 8)),
        ("column_reduction", (X, EXP, COLUMN), ("sigmoid", *["select", "mul", "add"] * 7)),
        ("column_reduction", (X, EXP, COLUMN), ("sigmoid", *["mul", "add"] * 8)),
        ("gemm", (X, product("p"), EXP), ("addmm", "exp")),
        ("mixed", (X, product("p"), EXP, ROW), ("addmm", "exp", "sum")),
        ("convolution", (X, product("p"), EXP), ("convolution", "exp")),
        ("mixed", (X, product("p"), product("q")), ("convolution", "mm")),
        ("attention", (X, product("p"), product("q"), ROW, EXP), ("matmul", "_softmax", "bmm")),
        ("attention", (X, product("p")), ("scaled_dot_product_attention",)),
        ("recurrence", (X, product("p")), ("lstm",)),
        ("recurrence", (X, product("p"), EXP), ("mm", *["select", "addmm", "sigmoid", "mul"] * 8)),
        ("recurrence", (X, product("p"), EXP), (*["select", "addmm", "sigmoid", "mul"] * 8, "_softmax", "mm")),
        ("mixed", (X, product("p")), ("sort",)),
    ],
)
def test_the_kind_of_work(kind: str, nodes: tuple[Node, ...], labels: tuple[str, ...]) -> None:
    assert category(Graph(nodes=nodes, outputs=(nodes[-1].name,), calls=calls(*labels))) == kind


def test_what_cannot_be_traced_is_mixed() -> None:
    assert category(None) == "mixed"


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", CATEGORIES)
def test_every_kind_has_a_prompt_for_both_targets(kind: str, target: str) -> None:
    on = context()
    author = Author(replace(on, problem=replace(on.problem, target=target)))
    author._task["category"] = kind
    (message,) = author.first("write", ledger=["an idea: failed"], near=[])
    text = message.text
    assert "{{" not in text and "{%" not in text
    assert kind.replace("_", " ") in text and "Structures to try, in order" in text
    assert "an idea: failed" in text and "f32[4, 8]" in text and "10 GB/s" in text
    assert ("CTA" in text or "SM" in text or "wgmma" in text or kind == "convolution") or target == "cpu"
    assert "CTA" not in text or target == "cuda"


def test_the_kinds_differ() -> None:
    author = Author(context())
    texts = set()
    for kind in CATEGORIES:
        author._task["category"] = kind
        texts.add(author.first("write", ledger=[], near=[])[0].text)
    assert len(texts) == len(CATEGORIES)


@pytest.mark.parametrize(("groups", "depthwise"), [((16, 16), True), ((16, 1), False), ((1, 1), False), ((), False)])
def test_depthwise_are_convolutions_of_as_many_groups_as_channels(groups: tuple[int, ...], depthwise: bool) -> None:
    made = tuple(
        Call(
            name=f"c{n}",
            target="aten.conv2d.default",
            args=(Ref(name="x"), Ref(name="w"), None, 1, 0, 1, n),
            results=(),
        )
        for n in groups
    )
    assert is_depthwise(Graph(nodes=(X,), outputs=("x",), calls=made)) == depthwise
    assert not is_depthwise(None)
