"""ColumnGroups of a product's columns, and whole rows, reduced in its kernel: which are found, that the Program is
what the module gives, that kernels compile for Hopper without spilling, and what stays apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.grouped import GROUPED, WIDE_ROWS, A, K, M, W, rand
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun
from fakes.realisers import cuda, gpu
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.validation import validate
from tilewright.kernels.cuda.gemm.epilogue.column_groups import LEAST
from tilewright.realise.gemm import renderer as cuda_product
from tilewright.realise.gemm.column_groups import LEAST_TOGETHER, has_column_groups

pytestmark = pytest.mark.one_in(4)


@pytest.fixture(autouse=True)
def proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is better done by another kernel."""
    monkeypatch.setattr(cuda_product, "unhidden", lambda program: None)


def products(function: Callable[..., Any], *args: Tensor) -> list[Pattern]:
    matched = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space)
    return [p for p in matched.patterns if p.kind == "product"]


def found(name: str, dtype: torch.dtype = torch.float32) -> Pattern:
    function, args, size = (GROUPED | WIDE_ROWS)[name]
    alone, pattern = products(function, *(a.to(dtype) for a in args))
    assert not alone.program.reduced and has_column_groups(pattern.program) and pattern.program.domain[-1] == size
    validate(pattern.program)
    return pattern


@pytest.mark.parametrize("name", [*GROUPED, *WIDE_ROWS])
def test_the_program_is_what_the_module_gives(name: str) -> None:
    function, args, _ = (GROUPED | WIDE_ROWS)[name]
    dtype = torch.bfloat16 if name in WIDE_ROWS else torch.float32
    exact = [a.to(dtype).double() for a in args]
    graph = trace(Applies(function), tuple(a.to(dtype) for a in args), {})
    pattern = found(name, dtype)
    run = GraphRun(graph, Applies(function), patterns=[pattern])
    torch.testing.assert_close(run(*exact).double(), function(*exact).double())
    assert run.fused == set(pattern.matches[0].nodes)


@pytest.mark.few(0, 3, 5, 9)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("group norm", torch.float32), ("of groups", torch.float32), ("largest of four", torch.float32),
     ("heads", torch.bfloat16), ("softmax", torch.bfloat16), ("rows of 99, masked", torch.float32),
     ("rows of 64", torch.bfloat16), ("rows of 100", torch.bfloat16), ("rows of 200", torch.bfloat16),
     ("rows of 256", torch.bfloat16)],
)  # fmt: skip
def test_kernels_compile_for_hopper_and_spill_nothing(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    pattern = found(name, dtype)
    module = load_fused(pattern.program, tmp_path)
    module._FUSED.prepare(gpu())
    assert module._FUSED.demand(132)["local_bytes"] == 0


def test_settings_that_can_not_be_are_refused(tmp_path: Path) -> None:
    module = load_fused(found("heads").program, tmp_path)
    for wrong in ({"split_k": 2}, {"store": "bulk"}, {"streamed": "right", "tile": "128x128", "cluster": "1x2"}):
        with pytest.raises(ValueError, match="groups are reduced"):
            module.configure(**wrong)
    with pytest.raises(ValueError, match="groups of 128 columns"):
        module.configure(tile="128x64", cluster="1x1")
    module = load_fused(found("rows of 100").program, tmp_path)
    module.configure(tile="128x256", cluster="1x1")
    with pytest.raises(ValueError, match="groups of 100 columns"):
        module.configure(tile="128x64", cluster="1x1")


def test_points_are_those_at_which_groups_lie_in_tiles() -> None:
    assert LEAST_TOGETHER == LEAST
    for dtype in (torch.float32, torch.bfloat16):
        points = [dict(p) for p in found("heads", dtype).space.points]
        assert all((p["split_k"], p["store"]) == (1, "direct") and p["streamed"] != "right" for p in points)
        assert all(int(str(p["tile"]).split("x")[1]) % 128 == 0 for p in points)


def test_elements_are_written_there_only_while_another_tile_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    function, args, _ = GROUPED["heads"]
    wide = (rand(2048, 4096) / 64, rand(2048, 4096), rand(128))
    for given, dtype, wanted in ((args, torch.bfloat16, 1), (wide, torch.float32, 1), (wide, torch.bfloat16, 2)):
        found = products(function, *(a.to(dtype) for a in given))
        assert len(found) == wanted, (dtype, given[0].shape)
    assert {dict(p)["schedule"] for p in found[-1].space.points} == {"pingpong"}
    monkeypatch.setitem(cuda_product._WRITTEN_FROM, ("groups of columns", 16), 4097)
    assert len(products(function, *(a.to(torch.bfloat16) for a in wide))) == 1
    pooling, args, _ = GROUPED["average pooling"]
    assert len(products(pooling, *args)) == 2, "one number a group is written at once"


def test_whole_rows_are_written_there_from_a_least_k_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def softmax(a: Tensor, w: Tensor) -> Tensor:
        return F.linear(a, w).softmax(-1)

    for k, dtype, wanted in ((448, torch.bfloat16, 1), (2048, torch.float32, 1), (512, torch.bfloat16, 2)):
        found = products(softmax, rand(9000, k).to(dtype), rand(128, k).to(dtype))
        assert len(found) == wanted, (k, dtype)
    monkeypatch.setitem(cuda_product._WRITTEN_FROM, ("rows", 16), 448)
    assert len(products(softmax, *(rand(n, 448).half() for n in (9000, 128)))) == 2
    monkeypatch.delitem(cuda_product._WRITTEN_FROM, ("rows", 16))
    assert len(products(softmax, *(rand(n, 4096).half() for n in (9000, 128)))) == 1


@pytest.mark.parametrize("columns", [10, 64, 65, 128, 200, 256])
def test_points_of_whole_rows_have_a_tile_that_holds_one(columns: int) -> None:
    alone, pattern = products(lambda a, w: (a @ w.T).softmax(-1), rand(9000, K).half(), rand(columns, K).half())
    assert alone.program.reduced == () and pattern.program.domain == (9000, 1, columns)
    points = [dict(p) for p in pattern.space.points]
    held = {int(str(p["tile"]).split("x")[1]) for p in points}
    assert held == {64 if columns <= 64 else 128 if columns <= 128 else 256}
    assert points[0]["schedule"] == "pingpong" and all(p["store"] == "direct" for p in points)


def test_rows_that_fit_no_tile_or_lie_in_parts_stay_apart() -> None:
    half = [
        (lambda a, w: (a @ w.T).softmax(-1), (rand(9000, K), rand(264, K))),  # of more columns than a tile
        (lambda a, w: (a @ w.T).softmax(0), (rand(128, K), rand(9000, K))),  # columns of which elements are wanted
        (lambda a, w: (a @ w.T).softmax(-1), (rand(64, 4096), rand(256, 4096))),  # small-M: K is cut
        (lambda a, w: (a @ w.T).softmax(-1), (rand(8000, 2048), rand(64, 2048))),
        (lambda a, w: (a @ w.T).tril().softmax(-1), (rand(9000, K), rand(128, K))),  # by position
        (lambda a, w: (lambda y: (y.softmax(-1), y))(a @ w.T), (rand(9000, K), rand(128, K))),
    ]  # it is wanted
    for function, args in half:
        found = products(function, *(a.half() for a in args))
        assert not any(p.program.reduced for p in found), [a.shape for a in args]
    assert not any(p.program.reduced for p in products(half[0][0], rand(9000, K), rand(129, K))), "fp32"


def test_what_lies_in_no_tile_or_is_read_twice_stays_apart() -> None:
    apart: list[tuple[Callable[..., Any], tuple[Tensor, ...]]] = [
        (lambda a, w: F.group_norm(a @ w.T, 2), (A, W)),  # 192 columns
        (lambda a, w: F.group_norm(a @ w.T, 32), (A, W)),  # 12 columns
        (lambda a, w: F.group_norm(a @ w.T, 2), (A, rand(512, K))),  # 256 columns of fp32
        (lambda a, w: (a @ w.T).view(M, 24, 16).argmax(-1), (A, W)),  # positions
        (lambda a, w: (lambda y: (y.view(M, 24, 16).amax(-1), y))(a @ w.T), (A, W)),  # the product is wanted
        (lambda a, w: (a @ w.T).view(M, 24, 16).amax(1), (A, W)),  # across groups
        (lambda a, w: F.max_pool1d((a @ w.T)[:, None], 4, 2)[:, 0], (A, W)),  # windows that overlap
        (lambda a, w: F.max_pool1d((a @ w.T)[:, None], 4, padding=1)[:, 0], (A, W)),
    ]
    for function, args in apart:
        assert [p.program.reduced for p in products(function, *args)] == [()], function
