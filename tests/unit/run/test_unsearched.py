"""What is realised of a graph without a search, on a GPU that is not there: which parts, and at which points."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fakes.facts import MACHINE, winner
from tilewright.frontend.rows import traced_operators
from tilewright.frontend.trace import trace_operators
from tilewright.run.unsearched import Unsearched, unsearched
from tilewright.search.tune.memory import remember

GPU = replace(MACHINE, target="cuda", device="NVIDIA H200", architecture="sm_90a", processors=132, cache_bytes=60 << 20)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bare, self.fused = nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (torch.special.i0e(self.bare(torch.special.i0e(self.fused(x).relu()))),)


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    return (torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v,)


class Calls(nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.forward = function  # type: ignore[assignment]


def plan_of(folder: Path, dtype: torch.dtype, *, allow_tf32: bool = False, ranked: bool = True) -> Unsearched:
    graph = trace_operators(Net().to(dtype).eval(), (torch.randn(1024, 512).to(dtype),))
    return unsearched(
        graph, GPU, winners=folder / "w.db", shipped=folder / "none.db", allow_tf32=allow_tf32, ranked=ranked
    )


def titles(plan: Unsearched) -> list[str]:
    return sorted(plan.title(choice.pattern) for choice in plan.recipe)


@pytest.mark.parametrize(("dtype", "allow_tf32", "found"), [
    (torch.bfloat16, False, ["linear -> relu"]), (torch.float32, False, ["linear", "linear -> relu"]),
    (torch.float32, True, ["linear -> relu"]),
])  # fmt: skip
def test_a_bare_product_is_torchs_where_it_has_tensor_cores(
    dtype: torch.dtype, allow_tf32: bool, found: list[str], tmp_path: Path
) -> None:
    assert titles(plan_of(tmp_path, dtype, allow_tf32=allow_tf32)) == found


def test_what_was_not_tuned_is_inductors_but_for_fp32_products(tmp_path: Path) -> None:
    assert titles(plan_of(tmp_path, torch.bfloat16, ranked=False)) == []
    assert titles(plan_of(tmp_path, torch.float32, allow_tf32=True, ranked=False)) == []
    assert titles(plan_of(tmp_path, torch.float32, ranked=False)) == ["linear", "linear -> relu"]


def test_a_winner_is_taken_and_else_the_likeliest(tmp_path: Path) -> None:
    (bare,) = (p for p in plan_of(tmp_path, torch.bfloat16).matched.patterns if p.title == "linear")
    won = bare.space.points[-1]
    remember(tmp_path / "w.db", replace(winner(won, shape_class=bare.shape_class), target="cuda", device="NVIDIA H200"))
    plan = plan_of(tmp_path, torch.bfloat16)
    assert titles(plan) == ["linear", "linear -> relu"]
    points = {choice.pattern: choice.point for choice in plan.recipe}
    likeliest = {p.id: won if p.id == bare.id else p.space.points[0] for p in plan.patterns}
    assert points == likeliest and won != bare.space.points[0]


def test_open_rows_leave_what_takes_no_other_number_to_torch(tmp_path: Path) -> None:
    class Softmax(Net):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (torch.softmax(super().forward(x)[0] * 2, -1),)

    graph = traced_operators(Softmax().bfloat16().eval(), (torch.randn(1024, 512).bfloat16(),), [True])
    plan = unsearched(graph, GPU, winners=tmp_path / "w.db", shipped=tmp_path / "none.db", ranked=True)
    assert titles(plan) == ["scale -> softmax"] and plan.any_rows
    assert titles(unsearched(replace(graph, free=()), GPU, winners=tmp_path / "w.db", ranked=True)) == [
        "linear -> relu", "scale -> softmax",
    ]  # fmt: skip


def test_names_are_the_graphs_own(tmp_path: Path) -> None:
    """Inductor keeps graphs by the names of operators, from process to process."""
    one, same, other = (plan_of(tmp_path, dtype) for dtype in (torch.bfloat16, torch.bfloat16, torch.float16))
    assert one.recipe == same.recipe
    assert {c.pattern for c in one.recipe}.isdisjoint(c.pattern for c in other.recipe)


def test_attention_is_one_librarys_and_what_the_graph_calls_is_not_called_again(tmp_path: Path) -> None:
    given = tuple(torch.randn(2, 4, 256, 64) for _ in range(3))
    graph = trace_operators(Calls(attention), given)
    plan = unsearched(graph, GPU, winners=tmp_path / "w.db", shipped=tmp_path / "none.db", ranked=True)
    assert len(plan.recipe) == 1 and plan.recipe[0].written is not None and "attention" in titles(plan)[0]
    assert plan.without({plan.recipe[0].pattern}).recipe == ()
    sdpa = Calls(lambda q, k, v: (nn.functional.scaled_dot_product_attention(q, k, v),))
    assert unsearched(trace_operators(sdpa, given), GPU, winners=tmp_path / "w.db").recipe == ()
