"""Depthwise convolutions on a GPU against float64: windows, strides, dtypes, layouts, edges, and every point."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
import torch.nn.functional as F

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import cuda, gpu
from fakes.traced import only_program

from .test_cuda_kernels import close, every_other, padded_rows, shifted

pytestmark = pytest.mark.gpu


def convolution(shape, window, dtype=torch.float32, each=1, bias=False, **settings):
    """The Program of one, and of the bias that is added to it."""
    channels, conv = shape[1], F.conv2d if len(shape) == 4 else F.conv1d
    given = [torch.randn(shape), torch.randn(channels * each, 1, *window)] + ([torch.randn(channels)] if bias else [])
    return only_program(lambda *args: conv(*args, groups=channels, **settings), *(t.to(dtype) for t in given))


SHAPES = {
    "3x3": ((4, 8, 64, 64), (3, 3), {"padding": 1}),
    "3x3 without padding": ((4, 8, 64, 64), (3, 3), {}),
    "3x3 strided": ((4, 8, 64, 64), (3, 3), {"padding": 1, "stride": 2}),
    "5x5": ((4, 8, 28, 28), (5, 5), {"padding": 2, "bias": True}),
    "5x5 strided": ((4, 8, 28, 28), (5, 5), {"padding": 2, "stride": 2}),
    "7x7": ((4, 8, 56, 56), (7, 7), {"padding": 3, "bias": True}),
    "9x9 dilated": ((2, 8, 40, 56), (9, 9), {"padding": 8, "dilation": 2}),
    "11x11": ((2, 4, 33, 44), (11, 11), {"padding": 5}),
    "7x7 images": ((16, 24, 7, 7), (5, 5), {"padding": 2, "bias": True}),
    "14x14 images": ((16, 24, 14, 14), (3, 3), {"padding": 1}),
    "odd lines": ((3, 5, 37, 53), (3, 3), {"padding": 1}),
    "odd large lines": ((1, 3, 203, 301), (3, 5), {"padding": (1, 2), "stride": (2, 1)}),
    "a column": ((2, 8, 64, 64), (3, 1), {}),
    "a line, dilated": ((2, 8, 30, 64), (1, 5), {"dilation": 3, "padding": "same"}),
    "3x7": ((2, 16, 32, 64), (3, 7), {}),
    "wide lines": ((1, 3, 9, 4100), (3, 3), {"padding": 1}),
    "one-dimensional": ((2, 8, 5000), (7,), {"padding": 3}),
    "one-dimensional, strided": ((2, 8, 4999), (4,), {"padding": 1, "stride": 2}),
    "two results a channel": ((2, 6, 32, 32), (3, 3), {"padding": 1, "each": 2}),
    "four results a channel, odd": ((2, 5, 19, 23), (3, 3), {"padding": 1, "stride": 2, "each": 4}),
}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def plan_of(module, operands):
    return module._FUSED.plan([o.stride() for o in operands], [16] * len(operands), gpu())


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", list(SHAPES))
def test_against_float64(name, dtype, tmp_path):
    shape, window, settings = SHAPES[name]
    program = convolution(shape, window, DTYPES[dtype], **settings)
    operands = kp.make_operands(program, "cuda")
    module = load_fused(program, tmp_path)
    assert hasattr(plan_of(module, operands), "part")
    close(module.run(*operands), program, operands)


AROUND = {
    "an activation, a residual": (
        lambda x, w, b, y: torch.relu(F.conv2d(x, w, b, padding=1, groups=8)) + y, (8, 1, 3, 3), (8,), (4, 8, 30, 30)),
    "batch norm on both sides": (
        lambda x, w, s, t, u, v: F.hardswish(F.conv2d(F.relu6(x * s + t), w, None, 2, 1, groups=8) * u + v),
        (8, 1, 3, 3), (8, 1, 1), (8, 1, 1), (8, 1, 1), (8, 1, 1)),
    "a scale of each image": (
        lambda x, w, s: F.conv2d(F.relu(x) * s, w, None, 1, 1, groups=8), (8, 1, 3, 3), (4, 8, 1, 1)),
    "two results": (
        lambda x, w: ((y := F.conv2d(x, w, None, 1, 1, groups=8)), torch.sigmoid(y)), (8, 1, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("size", [30, 7])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", list(AROUND))
def test_what_comes_before_and_follows(name, dtype, size, tmp_path):
    function, *shapes = AROUND[name]
    shapes = [(4, 8, size, size), *((4, 8, size, size) if s == (4, 8, 30, 30) else s for s in shapes)]
    program = only_program(function, *(torch.randn(s).to(DTYPES[dtype]) for s in shapes))
    operands = kp.make_operands(program, "cuda")
    module = load_fused(program, tmp_path)
    assert hasattr(plan_of(module, operands), "part")
    close(module.run(*operands), program, operands)


@pytest.mark.parametrize("name", ["3x3 strided", "odd lines"])
def test_every_point_and_layout(name, tmp_path):
    shape, window, settings = SHAPES[name]
    program = convolution(shape, window, torch.float16, bias=True, **settings)
    module, operands = load_fused(program, tmp_path), kp.make_operands(program, "cuda", seed=1)
    for settings in cuda.space(program).points:
        module.configure(**dict(settings))
        close(module.run(*operands), program, operands)
    for layout in (shifted, every_other, padded_rows):
        moved = [layout(operands[0]), *operands[1:]]
        close(module.run(*moved), program, moved)
    last = [operands[0].contiguous(memory_format=torch.channels_last), *operands[1:]]
    close(module.run(*last), program, last)


def test_edge_values_stay_in_their_windows(tmp_path):
    program = convolution((2, 4, 33, 40), (3, 3), padding=1)
    module, operands = load_fused(program, tmp_path), kp.make_operands(program, "cuda", seed=2)
    (first,) = module.run(*operands)
    assert all(torch.equal(first, module.run(*operands)[0]) for _ in range(50))
    x = operands[0]
    x[0, 0, 5, 7], x[0, 1, 0, 0], x[1, 2], x[1, 3, 32, 39] = nan, inf, -inf, nan
    (got,) = module.run(*operands)
    want = F.conv2d(x, operands[1].reshape(4, 1, 3, 3), None, padding=1, groups=4)
    torch.testing.assert_close(got.reshape(want.shape), want, equal_nan=True)


LAST = {
    "3x3": ((4, 64, 28, 28), (3, 3), {"padding": 1, "bias": True}),
    "5x5 strided": ((4, 40, 28, 28), (5, 5), {"padding": 2, "stride": 2}),
    "7x7": ((4, 96, 14, 14), (7, 7), {"padding": 3, "bias": True}),
    "7x7 images": ((16, 72, 7, 7), (5, 5), {"padding": 2}),
    "dilated": ((2, 24, 21, 33), (3, 3), {"padding": 2, "dilation": 2}),
    "odd channels": ((2, 13, 20, 20), (3, 3), {"padding": 1}),
}


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", list(LAST))
def test_channels_side_by_side(name, dtype, tmp_path):
    shape, window, settings = LAST[name]
    channels, given = shape[1], dict(settings)
    shapes = [(channels, 1, *window)] + ([(channels,)] if given.pop("bias", False) else [])
    x = torch.randn(shape).to(DTYPES[dtype]).to(memory_format=torch.channels_last)
    program = only_program(
        lambda x, *args: F.relu(F.conv2d(x, *args, groups=channels, **given)), x,
        *(torch.randn(s).to(DTYPES[dtype]) for s in shapes),
    )  # fmt: skip
    operands = kp.make_operands(program, "cuda")
    operands[0] = operands[0].contiguous(memory_format=torch.channels_last)
    module = load_fused(program, tmp_path)
    assert plan_of(module, operands).part.channels
    for settings in cuda.space(program).points:
        module.configure(**dict(settings))
        close(module.run(*operands), program, operands)


def test_one_kernel_takes_many_numbers_of_images(tmp_path):
    def make(images):
        return convolution((images, 24, 14, 14), (3, 3), padding=1)

    module = load_fused(make(64), tmp_path)
    for images in (64, 65, 131, 640):
        operands = kp.make_operands(make(images), "cuda", seed=images)
        assert module.takes(images)
        close(module.run(*operands), make(images), operands)
    assert len(module._FUSED.objects) <= 3, "some are ragged, and many have larger tiles"
