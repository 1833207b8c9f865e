"""Floats of eight bits in the reference's cell: the truth of their products, and inputs and weights that move."""

from __future__ import annotations

import pytest
import torch

from tilewright.judge.reference_process import families
from tilewright.judge.reference_process.eight_bits import computable, within
from tilewright.judge.reference_process.rearrange import Rearranger
from tilewright.judge.reference_process.widened import Widened
from tilewright.judge.reference_process.work import measure

E4M3 = torch.float8_e4m3fn


def test_a_truth_is_the_product_of_what_the_eight_bits_hold() -> None:
    a, w = torch.randn(32, 64).to(E4M3), torch.randn(48, 64).to(E4M3)
    of_a, of_w, bias = torch.rand(32, 1), torch.rand(1, 48), torch.randn(48).bfloat16()
    wanted = a.double() @ w.double().t() * of_a * of_w + bias
    with pytest.raises((RuntimeError, ValueError)):
        torch._scaled_mm(a.double(), w.double().t(), of_a, of_w, out_dtype=torch.bfloat16)
    with Widened():
        for given in ((a.double(), w.double()), (a, w.double())):  # a module may round its own input
            found = torch._scaled_mm(
                given[0], given[1].t(), of_a.double(), of_w.double(), bias=bias.double(), out_dtype=torch.bfloat16
            )
            assert found.dtype == torch.float64 and torch.allclose(found, wanted)
        own = torch._scaled_mm(a, w.t(), torch.tensor(1.0), torch.tensor(1.0), out_dtype=torch.bfloat16)
    assert own.dtype == torch.bfloat16, "what is not the truth's stays torch's"


def test_a_truth_of_experts_is_the_products_of_their_rows() -> None:
    x, w = torch.randn(10, 16), torch.randn(3, 16, 8)
    offs = torch.tensor([4, 4, 9], dtype=torch.int32)
    with Widened():
        found = torch._grouped_mm(x.double(), w.double(), offs=offs)
    wanted = torch.cat([x[:4].double() @ w[0].double(), x[4:9].double() @ w[2].double(), torch.zeros(1, 8)])
    assert found.dtype == torch.float64 and torch.allclose(found, wanted)
    x, w = x.bfloat16(), w.bfloat16()
    seen = measure(lambda: torch._grouped_mm(x, w, offs=offs), (x, w), lambda r: [r])
    assert (seen.work.dtype, seen.work.matmul_flops, seen.longest_sum) == ("bf16", 2 * 10 * 16 * 8, 16)


def test_its_rate_is_that_of_eight_bits_whatever_its_scales_are() -> None:
    a, w = torch.randn(32, 64).to(E4M3), torch.randn(48, 64).to(E4M3)
    one = torch.tensor(1.0)
    seen = measure(lambda: torch._scaled_mm(a, w.t(), one, one, out_dtype=torch.bfloat16), (a, w), lambda r: [r])
    assert seen.work.dtype == "float8_e4m3fn" and seen.work.matmul_flops == 2 * 32 * 48 * 64


@pytest.mark.parametrize("family", list(families.FAMILIES))
def test_inputs_are_drawn_within_the_type(family: str) -> None:
    drawn = families.redistribute(torch.randn(64, 64).to(E4M3), family, 0)
    assert drawn.dtype == E4M3
    if family != families.SPECIALS:
        assert bool(drawn.float().isfinite().all())


def test_weights_move_and_are_no_masks() -> None:
    weight = torch.randn(64, 64).to(E4M3)
    before = weight.float()
    families.perturb_state("weight", weight, is_parameter=True, source=torch.Generator().manual_seed(0))
    assert weight.dtype == E4M3 and float((weight.float() != before).float().mean()) > 0.5
    module = torch.nn.Module()
    module.register_buffer("weight", weight)
    assert Rearranger(module, ()) is not None
    assert computable(before) is before and computable(weight).dtype == torch.float32
    assert float(within(torch.tensor(1e6), E4M3).float()) == 448.0
