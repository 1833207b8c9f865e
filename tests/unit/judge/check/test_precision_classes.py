"""The contract admits every honest order of summation, and refuses one class below, at every length of the sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from tilewright.judge.check import metric
from tilewright.judge.reference_process.families import redistribute

LENGTHS = (1, 2, 7, 64, 1000, 4096, 65536)
FAMILIES = ("normal", "uniform", "one_sided")


def _sequential(x: Tensor) -> Tensor:
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=1, dtype=np.float32)[:, -1].copy())


def _blocked(x: Tensor) -> Tensor:
    blocks = torch.nn.functional.pad(x, (0, -x.shape[1] % 128)).reshape(-1, 128)
    return _sequential(_sequential(blocks).reshape(x.shape[0], -1))


def _split(x: Tensor) -> Tensor:
    lanes = torch.nn.functional.pad(x, (0, -x.shape[1] % 8)).reshape(x.shape[0], -1, 8).transpose(1, 2)
    return _sequential(lanes.reshape(-1, lanes.shape[2]).contiguous()).reshape(x.shape[0], 8).sum(1)


def _tf32(x: Tensor) -> Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


ORDERS: Mapping[str, Callable[[Tensor], Tensor]] = {"sequential": _sequential, "blocked": _blocked, "split": _split}
BELOW: Mapping[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "tf32": lambda x, w: (_tf32(x), _tf32(w)),
    "tf32 in one operand": lambda x, w: (_tf32(x), w),
    "fp16": lambda x, w: (x.half().float(), w.half().float()),
    "bf16": lambda x, w: (x.bfloat16().float(), w.bfloat16().float()),
}


def _share(value: Tensor, truth: Tensor, own: Tensor, length: int) -> float:
    """How much of the allowance is used."""
    got, reference = metric.distance(value, truth, own), metric.distance(own, truth, own)
    norm, worst = metric.floors(value.dtype, length=length)
    return max(got.norm / max(2 * reference.norm, norm), got.worst / max(2 * reference.worst, worst))


def _drawn(family: str, length: int) -> tuple[Tensor, Tensor, Tensor]:
    like = torch.zeros(16, length)
    x, w = redistribute(like, family, 1), redistribute(like, family, 2)
    return x, w, (x.double() * w.double()).sum(1)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("order", ORDERS)
def test_honest_orders_of_summation_pass(order: str, length: int) -> None:
    for family in FAMILIES:
        x, w, truth = _drawn(family, length)
        assert _share(ORDERS[order](x * w), truth, (x * w).sum(1), length) <= 1.0, family


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("below", BELOW)
def test_one_class_below_is_refused(below: str, length: int) -> None:
    shares = []
    for family in FAMILIES:
        x, w, truth = _drawn(family, length)
        a, b = BELOW[below](x, w)
        shares.append(_share((a * b).sum(1), truth, (x * w).sum(1), length))
    assert max(shares) > 3.0


def test_sums_of_one_sign_need_the_one_sided_family() -> None:
    """Rounding errors cancel in a long sum; with inputs that all lose, they do not."""
    losses = []
    for family in ("uniform", "one_sided"):
        x = redistribute(torch.zeros(16, 65536), family, 1).abs()
        losses.append(_share(_tf32_nearest(x).sum(1), x.double().sum(1), x.sum(1), 65536))
    assert losses[0] < 1.0 < losses[1]


def _tf32_nearest(x: Tensor) -> Tensor:
    raw = x.view(torch.int32)
    return (raw + 0x0FFF + ((raw >> 13) & 1) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize(("dtype", "below"), [(torch.float16, torch.bfloat16), (torch.bfloat16, torch.float8_e4m3fn)])
@pytest.mark.parametrize("length", LENGTHS)
def test_narrow_outputs_are_held_to_their_type(dtype: torch.dtype, below: torch.dtype, length: int) -> None:
    x, w, _ = _drawn("normal", length)
    x, w = x.to(dtype), w.to(dtype)
    truth = (x.double() * w.double()).sum(1)
    own = (x.float() * w.float()).sum(1).to(dtype)
    assert _share(_blocked(x.float() * w.float()).to(dtype), truth, own, length) <= 1.0
    lower = (x.to(below).float() * w.to(below).float()).sum(1).to(dtype)
    assert _share(lower, truth, own, length) > 1.0
