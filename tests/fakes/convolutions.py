"""Convolutions for tests of their skeleton: shapes, Specs and strides."""

from __future__ import annotations

from math import prod
from typing import Any

from tilewright.kernels.cuda.common.spec import ArraySpec
from tilewright.kernels.cuda.conv.fused import ConvSpec
from tilewright.kernels.cuda.conv.shape import ConvShape

Numbers = int | tuple[int, ...]


def shape_of(
    x: tuple[int, ...], w: tuple[int, ...], *, stride: Numbers = 1, padding: Numbers = 0, dilation: Numbers = 1,
    groups: int = 1, transposed: bool = False,
) -> ConvShape:  # fmt: skip
    """Of a convolution of up to three dimensions."""
    rank, taps = len(x) - 2, w[2:]

    def each(value: Numbers) -> tuple[int, ...]:
        return (value,) * rank if isinstance(value, int) else value

    def three(values: Any, fill: int) -> Any:
        return (*(fill for _ in range(3 - rank)), *values)

    strides, paddings, dilations = each(stride), each(padding), each(dilation)
    out = [
        (n - 1) * s + 1 + d * (t - 1) - 2 * p if transposed else (n + 2 * p - d * (t - 1) - 1) // s + 1
        for n, t, s, p, d in zip(x[2:], taps, strides, paddings, dilations, strict=True)
    ]
    ones, sign = (1,) * rank, -1 if transposed else 1
    return ConvShape(
        batch=x[0], groups=groups, channels=x[1] // groups, columns=w[1] if transposed else w[0] // groups,
        image=three(x[2:], 1), out=three(out, 1), taps=three(taps, 1),
        stride=three(ones if transposed else strides, 1), spread=three(strides if transposed else ones, 1),
        start=three([-sign * p for p in paddings], 0), step=three([sign * d for d in dilations], 1),
    )  # fmt: skip


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def channels_last(shape: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """The strides of x that lies so, in the Spec's dimensions."""
    at = 1 + (groups > 1)
    n, inner, places = shape[0], shape[1 : at + 1], shape[at + 1 :]
    batch, *rest = contiguous((n, *places, *inner))
    return (batch, *rest[len(places) :], *rest[: len(places)])


def spec_of(
    shape: ConvShape, x: tuple[int, ...], w: tuple[int, ...], how: dict[str, Any], dtype: str = "f32",
    last: bool = False,
) -> ConvSpec:  # fmt: skip
    rank, groups = len(x) - 2, shape.groups
    grouped = (groups,) if groups > 1 else ()
    out, columns = shape.out[3 - rank :], (*grouped, shape.columns)
    return ConvSpec(
        name="conv", shape=shape, x=ArraySpec(name="x", dtype=dtype, shape=(x[0], *grouped, shape.channels, *x[2:])),
        weight=ArraySpec(name="w", dtype=dtype, shape=(*grouped, w[0] // groups, *w[1:])), operands=(),
        outputs=(ArraySpec(name="y", dtype=dtype, shape=(x[0], *out, *columns) if last else (x[0], *columns, *out)),),
        channels_last=last, transposed=how.get("transposed", False),
    )  # fmt: skip
