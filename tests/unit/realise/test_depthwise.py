"""Which Programs are depthwise convolutions to a GPU, what is rendered of them, and that it compiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fakes.fused import load_fused
from fakes.realisers import cpu, cuda, gpu
from fakes.traced import only_program
from tilewright.facts.devices import DEVICES
from tilewright.ir.program import Load, Program
from tilewright.kernels.cuda.common.demand import demand
from tilewright.realise.depthwise.renderer import fits
from tilewright.realise.depthwise.shape import DepthwiseParts, depthwise
from tilewright.realise.realiser import Fit, Refused
from tilewright.realise.table import realisers

from ..kernels.test_cuda_instructions import compiled


def program(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Program:
    return only_program(function, *(torch.randn(s).to(dtype) for s in shapes))


X, W, C = (4, 8, 28, 28), (8, 1, 3, 3), (8, 1, 1)
OURS = {
    "alone": (lambda x, w: F.conv2d(x, w, groups=8), X, W),
    "what comes before and follows": (
        lambda x, w, s, t: torch.relu(F.conv2d(F.relu6(x * s + t), w, padding=1, groups=8) * t), X, W, C, C),
    "a batch norm before large windows": (
        lambda x, w, s, t: F.conv2d(F.relu6((x - s) * s * t + t), w, padding=2, groups=8), X, (8, 1, 5, 5), C, C),
    "two results a channel": (lambda x, w: F.conv2d(x, w, padding=1, stride=2, groups=8), X, (16, 1, 3, 3)),
    "one dimension": (lambda x, w: F.conv1d(x, w, padding=1, groups=8), (4, 8, 300), (8, 1, 3)),
    "an image": (lambda x, w: F.conv2d(x, w, padding=3, groups=8), (1, 8, 28, 28), (8, 1, 7, 7)),
}  # fmt: skip
THEIRS = {
    "a pool": (lambda x: F.avg_pool2d(x, 3, 2), "no sum of products in f32", X),
    "one result": (lambda x, w: F.conv2d(x, w, groups=8), "results that lie in another order", (4, 8, 3, 3), W),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OURS))
def test_ours(name: str) -> None:
    made = program(*OURS[name])
    found = depthwise(made)
    assert isinstance(found, DepthwiseParts) and (found.source, made.operands[0].indexed) == ("x0", True)
    fit = fits(made, DEVICES["h200"])
    assert isinstance(fit, Fit) and fit.any_rows == (made.domain[0] == 4) and cuda.digest(made) == "depthwise"
    assert not cpu.unsupported(made) and cpu.digest(made) != "depthwise"
    points = cuda.space(made).points
    assert len(points) >= 5 and all(dict(p).keys() == {"threads", "down", "along", "through"} for p in points)


@pytest.mark.parametrize("name", list(THEIRS))
def test_theirs(name: str) -> None:
    function, why, *shapes = THEIRS[name]
    answer = fits(program(function, *shapes), DEVICES["h200"])
    assert isinstance(answer, Refused) and answer.foreign and why in answer.why


def test_what_lies_around_is_zero() -> None:
    made = program(lambda x, w: F.conv2d(x, w, padding=1, groups=8), X, W)
    ones = tuple(replace(item, fill=1.0) if isinstance(item, Load) else item for item in made.body)
    assert depthwise(replace(made, body=ones)) == "something that is not 0 lies around the image"


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", list(OURS))
def test_kernels_compile_without_spilling(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    made = program(*OURS[name], dtype=dtype)
    module = load_fused(made, tmp_path)
    asked = demand(module._FUSED, gpu())
    assert asked["local_bytes"] == 0 and asked["registers"] <= 128
    walks = [o.strides for o in made.operands]
    assert module._FUSED.plan(walks, [16] * len(walks), gpu()).part.cells > 0


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("window", [3, 7])
def test_kernels_of_channels_side_by_side_compile_without_spilling(
    window: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    x = torch.zeros(8, 96, 14, 14, dtype=dtype).to(memory_format=torch.channels_last)
    made = only_program(
        lambda x, w, b: F.gelu(F.conv2d(x, w, b, padding=window // 2, groups=96)), x,
        torch.zeros(96, 1, window, window, dtype=dtype), torch.zeros(96, dtype=dtype),
    )  # fmt: skip
    module = load_fused(made, tmp_path)
    walks = module._FUSED._walks(module._FUSED.spec)
    part = module._FUSED.plan(walks, [16] * len(walks), gpu()).part
    assert part.channels == 128 // (4 * dtype.itemsize) and made.domain[-1] == 96
    asked = demand(module._FUSED, gpu())
    assert asked["local_bytes"] == 0 and asked["threads"] == part.threads


@pytest.mark.slow
def test_a_tile_is_few_wide_reads_and_its_products(tmp_path: Path) -> None:
    """Of 3x3 over lines of 512, eight results down and two along a thread: no more than what the tile needs."""
    made = program(lambda x, w: F.conv2d(x, w, groups=8), (2, 8, 512, 512), W)
    ptx, plan = compiled(made, tmp_path)
    assert (plan.part.down, plan.part.along, plan.part.rows, plan.threads) == (8, 2, 8, 256)
    lines = [line.split()[0].rstrip(";") for line in ptx.splitlines() if line.strip().endswith(";")]
    found = Counter(name for name in lines if name.startswith(("ld.global", "ld.shared", "st.", "fma", "bar.sync")))
    assert found == {
        "ld.global.v4.b32": 5, "st.shared.v4.b32": 5, "ld.global.b32": 1, "st.shared.b32": 1, "bar.sync": 1,
        "ld.shared.v2.b32": 20, "ld.shared.v4.b32": 3, "fma.rn.f32": 9 * 16, "st.global.v2.b32": 8,
    }  # fmt: skip
    order = [name for name in lines if name.startswith(("ld.global", "st.shared"))]
    assert order[:5] == ["ld.global.v4.b32"] * 5, (
        "all of a thread's vectors are on their way before anything is waited for"
    )


@pytest.mark.slow
@pytest.mark.parametrize("device", ["a100", "l40s", "b200"])
def test_kernels_compile_for_other_architectures(device: str, tmp_path: Path) -> None:
    made = program(*OURS["alone"])
    module = load_fused(made, tmp_path, renderer=realisers(DEVICES[device]))
    assert demand(module._FUSED, gpu(DEVICES[device]))["local_bytes"] == 0
