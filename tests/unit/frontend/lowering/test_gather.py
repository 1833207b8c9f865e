"""Gathers: embeddings, chosen rows and columns; in our vocabulary, in kernels, and out of range."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from fakes.realisers import cpu, cuda
from fakes.traced import only_program
from tilewright.frontend.lowering import gather as lower_gather
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.access import Position
from tilewright.ir.graph import Graph
from tilewright.ir.program import Load, Operand, Output, Program, Reduction
from tilewright.ir.validation import validate
from tilewright.realise.rows.ragged import stretch_of
from tilewright.realise.torch_code import expression

pytestmark = [pytest.mark.each(3), pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TABLE, ROWS, COLUMNS = torch.randn(40, 12), torch.randint(0, 40, (3, 5)), torch.randint(0, 12, (40, 7))


def agrees(function: Callable[..., Tensor], *args: Tensor, opaque: bool = False) -> Graph:
    """Trace, match, and compare graph and kernels' Programs with the function; `opaque`: some call must stay."""
    module = Applies(function)
    graph = trace(module, args, {})
    assert any(n.op == "call" for n in graph.nodes) == opaque
    matched = match(graph, unsupported=cpu.unsupported, space=cpu.space, tiny_bytes=0)
    for patterns in ((), matched.patterns):
        torch.testing.assert_close(GraphRun(graph, module, patterns=patterns)(*widened(args)), function(*widened(args)))
    return graph


@pytest.mark.parametrize("function", [
    lambda x, i, c: F.embedding(i, x, padding_idx=1) * 2, lambda x, i, c: x.index_select(1, c[0]).exp(),
    lambda x, i, c: torch.relu(x[i.int() - 20]), lambda x, i, c: x[:, c[:3] - 12] + 1,
    lambda x, i, c: x.gather(1, c) * 2,
    lambda x, i, c: F.layer_norm(F.embedding(i, x), (12,)), lambda x, i, c: F.embedding(i, x).mean(1),
    lambda x, i, c: torch.cat((x[i].exp(), x[i]), -1),
    lambda x, i, c: x[i, c[:3, :5] - 12] * 2, lambda x, i, c: x.view(8, 5, 12)[:, c[0] % 5, c[1:2] - 12].exp(),
    lambda x, i, c: x.take(i * 12 - 7) * 2, lambda x, i, c: x.take_along_dim(c, 1) * 2,
], ids=range(12))  # fmt: skip
def test_gathers(function: Callable[..., Tensor]) -> None:
    agrees(function, TABLE, ROWS, COLUMNS)


@pytest.mark.parametrize("settings", [
    {"mode": "sum"}, {"mode": "mean"}, {"mode": "max"}, {"mode": "sum", "padding_idx": 7},
    {"mode": "mean", "padding_idx": 7}, {"mode": "max", "padding_idx": -33},
], ids=str)  # fmt: skip
def test_bags_of_one_length(settings: dict[str, Any]) -> None:
    """A bag of nothing but padding is 0."""
    bags = torch.cat((ROWS, torch.full((1, 5), 7)))
    bags[0, 2] = 7
    agrees(lambda x, i: F.embedding_bag(i, x, **settings) * 2, TABLE, bags)
    agrees(lambda x, i: F.embedding_bag(i.view(-1), x, torch.arange(0, 20, 5), **settings), TABLE, bags)


def test_weighted_bags() -> None:
    agrees(lambda x, i, w: F.embedding_bag(i, x, mode="sum", per_sample_weights=w), TABLE, ROWS, torch.rand(3, 5))
    agrees(lambda x, i: F.embedding_bag(i[:, :1], x), TABLE, ROWS)


@pytest.mark.parametrize(("settings", "weighted"), [
    ({"mode": "sum"}, False), ({"mode": "mean"}, False), ({"mode": "max"}, False), ({"mode": "sum"}, True),
    ({"mode": "sum", "padding_idx": 7}, False), ({"mode": "mean", "include_last_offset": True}, False),
], ids=str)  # fmt: skip
def test_ragged_bags_are_one_kernel_on_a_gpu(
    settings: dict[str, Any], weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are empty, one has nothing but padding. Of calls on a CPU none is taken apart, as the next test shows."""
    monkeypatch.setattr(lower_gather, "RAGGED_ON", ("cpu",))
    indices, offsets, weights = ROWS.view(-1).clone(), torch.tensor([0, 2, 2, 9, 15]), torch.rand(15)
    indices[9:] = 7

    def function(x: Tensor, i: Tensor, o: Tensor, w: Tensor) -> Tensor:
        return F.embedding_bag(i, x, o, per_sample_weights=w if weighted else None, **settings) * 2

    module, args = Applies(function), (TABLE, indices, offsets, weights)
    graph = trace(module, args, {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space, tiny_bytes=0)
    (pattern,) = matched.patterns
    stretch = stretch_of(pattern.program)
    assert not matched.unmatched and stretch is not None and stretch.usual == 3
    for patterns in ((), matched.patterns):
        torch.testing.assert_close(GraphRun(graph, module, patterns=patterns)(*widened(args)), function(*widened(args)))


def test_what_stays_torch() -> None:
    agrees(lambda x, i, o: F.embedding_bag(i, x, o), TABLE, torch.arange(9), torch.tensor([0, 2, 2, 7]), opaque=True)
    agrees(lambda x, i: x[i, :, i] * 2, torch.randn(9, 3, 9), torch.arange(5), opaque=True)
    matched = match(agrees(lambda x, i: F.embedding(i, x), TABLE, ROWS), unsupported=cpu.unsupported, space=cpu.space)
    assert matched.unmatched == ("aten.embedding.default: a copy or cast alone: torch's own kernel is as good",)


def test_a_gather_can_be_written_in_torch() -> None:
    graph = trace(Applies(lambda x, c: x.gather(1, c) * 2), (TABLE, COLUMNS), {})
    (load,) = [n for n in graph.nodes if n.op == "load"]
    text = expression(load, [n for n in graph.nodes if n.name in load.sources], ["x", "c"], "'cpu'")
    assert torch.equal(eval(text, {"torch": torch, "x": TABLE, "c": COLUMNS}), TABLE.gather(1, COLUMNS))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tensor]:
    """The one output of a program, from a built kernel."""
    folder = tmp_path_factory.mktemp("candidate")
    build = functools.cache(lambda program: load_fused(program, folder, renderer=cpu))
    return lambda program, operands: build(program).run(*operands)[0]


@pytest.mark.parametrize("program", [
    kp.embedded(9, 77), pytest.param(kp.embedded(9, 77, dim=1, dtype="f16", index="i32"), marks=pytest.mark.slow),
], ids=["rows", "columns"])  # fmt: skip
def test_kernels_on_the_cpu(program: Program, run: Callable[..., Tensor]) -> None:
    table, index, bias = kp.make_operands(program, "cpu")
    (exact,), (usual,) = (kp.interpret(program, [table, index, bias], exact=flag) for flag in (True, False))
    for given in (table, table.t().contiguous().t()):
        got = run(program, [given, index, bias])
        allowed = max(2 * float((usual.double() - exact).abs().max()), 4 * torch.finfo(got.dtype).eps)
        assert got.dtype == usual.dtype and float((got.double() - exact).abs().max()) <= allowed
    for wrong in (-1, 1 << 20, -(1 << 40) if index.dtype == torch.int64 else -5):
        bad = index.clone()
        bad.view(-1)[3] = wrong
        with pytest.raises(IndexError, match="index out of range in self"):
            run(program, [table, bad, bias])
    assert torch.equal(run(program, [table, index, bias]), got), "a call that failed leaves nothing behind"


@pytest.mark.slow
def test_bags_on_the_cpu(run: Callable[..., Tensor]) -> None:
    def bag(i: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return F.embedding_bag(i, x, mode="sum", per_sample_weights=w)

    table, bags, weights = torch.randn(50, 77), torch.randint(0, 50, (19, 6)), torch.rand(19, 6)
    program = only_program(bag, bags, table, weights, renderer=cpu)
    by_shape = {tuple(t.shape): t for t in (table, bags[..., None], weights[..., None])}
    given = [bags[..., None] if o.dtype == "i64" else by_shape[o.shape] for o in program.operands]
    torch.testing.assert_close(run(program, given)[:, 0], bag(bags, table, weights))
    given[0] = given[0].clone()
    given[0][18, 5] = 50
    with pytest.raises(IndexError, match="index out of range in self"):
        run(program, given)


def test_what_a_reduction_finds_is_not_read_by_the_same_kernel() -> None:
    late = Program(
        domain=(5, 30), reduced=(1,),
        operands=(Operand(name="x", dtype="f32", shape=(5, 30)),
                  Operand(name="t", dtype="f32", shape=(30,), indexed=True)),
        body=(Reduction(results=("a",), op="argmax", arg="x", dtype="i64"),
              Load(result="v", source="t", dtype="f32", at=(Position(value="a"),))),
        outputs=(Output(name="v", dtype="f32", shape=(5, 1)),),
    )  # fmt: skip
    validate(late)
    assert cpu.unsupported(late) == "v: a load from where a reduction says"
