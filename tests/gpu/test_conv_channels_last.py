"""Im2col products on a GPU: convolutions of 16 bits in channels-last against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.bounded import Bounded
from fakes.channels_last import Case
from fakes.judges import judged_at_first_points
from tilewright.facts.outcome import Timed
from tilewright.kernels.cuda.conv.im2col import KERNELS, im2col_point
from tilewright.kernels.cuda.conv.tiles import DEFAULTS
from tilewright.kernels.cuda.conv.tiles import KNOBS as LEGAL
from tilewright.realise import table

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ALLOWED = {"f16": 1e-3, "bf16": 8e-3}  # in the norm: roundings of the result
PAD = (("padding", 1),)
STRIDED = (("padding", 1), ("stride", 2))
CASES = (
    Case(x=(1, 64, 30, 29), w=(64, 64, 3, 3), how=PAD, after="both"),
    Case(x=(4, 128, 21, 23), w=(128, 128, 3, 3), dtype="bf16", how=PAD, after="added"),
    Case(x=(4, 128, 29, 28), w=(128, 128, 3, 3), how=STRIDED, weights="last", after="normed"),
    Case(x=(3, 256, 13, 11), w=(512, 256, 3, 3), how=PAD, weights="last", after="added"),
    Case(x=(2, 256, 28, 28), w=(512, 256, 1, 1), how=(("stride", 2),)),
    Case(x=(70, 64, 24, 24), w=(128, 64, 3, 3), dtype="bf16", how=PAD, weights="last"),
    Case(x=(2, 64, 21, 23), w=(72, 64, 5, 3), how=(("dilation", (2, 3)), ("padding", (4, 2))), after="gated"),
    Case(x=(2, 64, 8, 17, 18), w=(64, 64, 3, 3, 3), how=PAD, after="added"),
    Case(x=(2, 64, 9, 17, 18), w=(96, 64, 3, 2, 3), dtype="bf16", how=(("padding", (1, 0, 1)), ("stride", 2)),
         after="relu"),
    Case(x=(2, 64, 1501), w=(128, 64, 5), how=(("dilation", 4), ("padding", 2), ("stride", 3)), after="relu"),
    Case(x=(5, 64, 14, 15), w=(300, 64, 3, 3), how=PAD, after="added"),
    Case(x=(2, 64, 21, 23), w=(33, 64, 3, 3), dtype="bf16", after="relu"),
    # those that TMA does not bring: other channels, groups, steps backwards
    Case(x=(2, 24, 30, 31), w=(40, 24, 3, 3), how=PAD, after="gated"),
    Case(x=(2, 72, 30, 31), w=(40, 72, 3, 3), dtype="bf16", how=(("stride", 2),), after="added"),
    Case(x=(2, 64, 21, 23), w=(64, 32, 3, 3), how=(("groups", 2), ("padding", 1)), after="relu"),
    Case(x=(2, 64, 21, 23), w=(64, 128, 5, 5), dtype="bf16", how=(("padding", 1), ("transposed", True))),
    Case(x=(2, 32, 8, 17, 18), w=(64, 32, 3, 3, 3), how=PAD, after="normed"),
    Case(x=(8, 8, 33, 31), w=(64, 8, 3, 3), how=PAD),
)  # fmt: skip
NAMES = ("pixels", "columns", "schedule", "cluster", "store")
TILES = (
    (128, 64, "pingpong", "2x1", "bulk"), (128, 128, "pingpong", "1x1", "staged"),
    (256, 64, "pingpong", "2x1", "staged"),
    (128, 128, "cooperative", "2x1", "bulk"), (64, 64, "cooperative", "1x1", "bulk"),
    (128, 256, "cooperative", "1x1", "staged"), (256, 128, "cooperative", "2x1", "staged"),
    (64, 128, "pingpong", "2x1", "staged"), (128, 128, "pingpong", "1x1", "direct"),
)  # fmt: skip


def settings(number: int) -> list[dict[str, Any]]:
    """Of a case: each kernel that computes it, at two tiles, others than its neighbours have."""
    found = []
    for kernel in KERNELS:
        for i in range(2):
            tile = TILES[(2 * number + i + 4 * (kernel == "im2col")) % len(TILES)]
            knobs = DEFAULTS | dict(zip(NAMES, tile, strict=True)) | {"kernel": kernel}
            try:
                im2col_point(CASES[number].spec.shape, knobs)
            except ValueError:
                continue
            found.append(knobs)
    return found


ALL = [(number, knobs) for number in range(len(CASES)) for knobs in settings(number)]


@pytest.fixture(scope="module")
def bounded() -> Bounded:
    return Bounded()


@pytest.mark.parametrize(
    ("number", "knobs"),
    ALL,
    ids=[f"{k['kernel']}-{'-'.join(str(k[n]) for n in NAMES)}-{CASES[i].name}" for i, k in ALL],
)
def test_an_im2col_product_gives_what_float64_gives(number: int, knobs: dict[str, Any], bounded: Bounded) -> None:
    case = CASES[number]
    norm, worst = bounded.call(Case.error, case, knobs)
    assert norm <= ALLOWED[case.dtype] and worst <= 8 * ALLOWED[case.dtype], (norm, worst)


BLOCK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(64, 64, 3, 1, 1), nn.Conv2d(64, 128, 3, 2, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (64, 128)])
        self.eval().half().to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (self.norms[0](self.one(x)) + x).relu()
        return self.norms[1](self.two(y)).relu()


def get_inputs():
    return [torch.rand(16, 64, 56, 56).half().to(memory_format=torch.channels_last)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_judge_takes_a_block_of_them(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPROVEN", frozenset(LEGAL["kernel"]) - {kernel})  # no other is proposed
    patterns, timed = judged_at_first_points(BLOCK, tmp_path)
    assert isinstance(timed, Timed), timed
    first = [dict(p.space.points[0])["kernel"] for p in patterns if p.kind == "convolution"]
    assert first == [kernel, kernel], first
    print(kernel, timed.ratio("eager"))
