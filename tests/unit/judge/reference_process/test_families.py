"""Families of inputs: each shows what it is there for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilewright.judge.reference_process.families import FAMILIES, chosen_to_move, perturb_state, redistribute
from tilewright.judge.wire.messages import SPREADS

LIKE = torch.zeros(64, 500)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_one_sided_numbers_all_lose_in_a_lower_class(narrow: torch.dtype) -> None:
    x = redistribute(LIKE, "one_sided", 1)
    x = x[x.abs() > 1e-3]  # below that, fp16 has fewer digits
    kept = x.to(narrow).float()
    assert bool((kept.abs() < x.abs()).all())
    assert 1e-4 < float(((x - kept).sum() / x.sum()).abs()) < 1e-2
    tf32 = (x.view(torch.int32) + 0x0FFF + ((x.view(torch.int32) >> 13) & 1) & ~0x1FFF).view(torch.float32)
    assert bool((tf32.abs() < x.abs()).all())


@pytest.mark.parametrize(
    ("dtype", "powers"), [(torch.float16, (6, 10)), (torch.bfloat16, (17, 21)), (torch.float32, (17, 21))]
)
def test_large_and_small_are_one_power_for_the_whole(dtype: torch.dtype, powers: tuple[int, int]) -> None:
    for family, sign in (("large", 1), ("small", -1)):
        sizes = [float(redistribute(LIKE.to(dtype), family, s).float().std()) ** sign for s in range(20)]
        assert 2.0 ** powers[0] * 0.6 < min(sizes) < max(sizes) < 2.0 ** powers[1] * 1.6
        assert max(sizes) > 4 * min(sizes)


def test_zeros_empty_whole_rows() -> None:
    x = redistribute(LIKE, "zeros", 1)
    assert bool((x[1::2] == 0).all()) and 0.05 < float((x[::2] != 0).float().mean()) < 0.15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_subnormals_are_below_the_normal_range(dtype: torch.dtype) -> None:
    x = redistribute(LIKE.to(dtype), "subnormals", 1)
    small = (x != 0) & (x.double().abs() < torch.finfo(dtype).tiny)
    assert 0.1 < float(small.float().mean()) < 0.15


def test_specials_are_few_and_of_each_kind() -> None:
    x: Tensor = redistribute(LIKE, "specials", 1)
    assert int((~torch.isfinite(x)).sum()) == 3
    assert int(x.isnan().sum()) == 1 and int(x.isposinf().sum()) == 1


def test_all_families_draw_in_every_type_and_shape() -> None:
    for family in FAMILIES:
        for like in (torch.zeros(()), torch.zeros(0, 3), torch.zeros(5, dtype=torch.float64)):
            assert redistribute(like, family, 1).shape == like.shape


def test_state_moves_whole_or_sparsely() -> None:
    def moved(spread: str, shape: tuple[int, ...]) -> float:
        tensor, source = torch.ones(shape), torch.Generator().manual_seed(3)
        perturb_state("weight", tensor, is_parameter=True, source=source, spread=spread)
        return float((tensor != 1).float().mean())

    assert moved("whole", (64, 500)) == 1.0
    assert 0.1 < moved("sparse", (64, 500)) < 0.15
    assert moved("sparse", (16,)) == 1.0, "of so few none may stay"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", ["few", "exchanged"])
def test_a_few_elements_move_by_far_or_change_places(dtype: torch.dtype, spread: str) -> None:
    start: Tensor = torch.randn(300, 70, generator=torch.Generator().manual_seed(1)).to(dtype)
    counts = set()
    for seed in range(40):
        tensor = start.T.clone().T  # whose elements do not lie in order
        perturb_state("w", tensor, is_parameter=True, source=torch.Generator().manual_seed(seed), spread=spread)
        differs = tensor != start
        assert 1 <= int(differs.sum()) <= 2 * 300 * 70 // 512
        counts.add(int(differs.sum()))
        same = torch.equal(tensor.flatten().sort().values, start.flatten().sort().values)
        assert same == (spread == "exchanged")
        assert float((tensor - start)[differs].abs().max()) > 1e-3
    assert len(counts) > 5


@pytest.mark.parametrize("shape", [(), (1,), (2,), (7,)])
def test_a_few_elements_of_tiny_state_move(shape: tuple[int, ...]) -> None:
    for seed in range(8):
        tensor, source = torch.ones(shape), torch.Generator().manual_seed(seed)
        perturb_state("running_var", tensor, is_parameter=False, source=source, spread=SPREADS[2 + seed % 2])
        assert int((tensor != 1).sum()) == 1 and bool((tensor > 0).all())


def test_where_few_elements_move_one_tensor_may_move_alone() -> None:
    names = ("a", "b", "c", "d")
    found = {chosen_to_move(names, spread="few", seed=seed) for seed in range(200)}
    assert found == {names, *((n,) for n in names)}
    assert all(chosen_to_move(names, spread=s, seed=5) == names for s in SPREADS[:2])
    assert chosen_to_move((), spread="few", seed=6) == ()


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("falls", [False, True])
def test_state_in_order_moves_and_stays_in_order(spread: str, falls: bool) -> None:
    edges = torch.linspace(-1.5, 1.5, 12).flip(0) if falls else torch.linspace(-1.5, 1.5, 12)
    moved = 0
    for seed in range(20):
        drawn = edges.clone()
        perturb_state("edges", drawn, is_parameter=False, source=torch.Generator().manual_seed(seed), spread=spread)
        steps = drawn.diff() if not falls else -drawn.diff()
        assert bool((steps >= 0).all())
        moved += int(not torch.equal(drawn, edges))
    assert moved > 10
