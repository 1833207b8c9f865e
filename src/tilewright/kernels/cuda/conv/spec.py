"""What a generated `fused_K.py` of a convolution tells the skeleton (see `fused`)."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.spec import ArraySpec, Function
from .reduction import ConvReduction
from .shape import ConvShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvSpec:
    """`shape`: the convolution; `x`, `weight` and `outputs` as the module's docstring has them, `operands` of the
    output's rank, each size its own or 1, or of channels a part, of which neighbours share an element. `epilogue`
    reads `product` and the operands by name; or there is a `reduction`, with one output. `channels_last`: how
    outputs lie, and the dimensions of the operands."""

    name: str
    shape: ConvShape
    x: ArraySpec
    weight: ArraySpec
    operands: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    epilogue: Function | None = None
    transposed: bool = False
    channels_last: bool = False
    reduction: ConvReduction | None = None

    @property
    def read(self) -> tuple[ArraySpec, ...]:
        """What it is called with, in order."""
        return (self.x, self.weight, *self.operands)

    @property
    def results(self) -> tuple[ArraySpec, ...]:
        """What a call gives."""
        return self.outputs

    def walk(self, strides: tuple[int, ...], shape: tuple[int, ...], *, last: bool = False) -> tuple[int, ...]:
        """Strides of x, of an operand or of an output along (n, g, channel, three spatial dimensions), 0 where it has
        one element; `last`: it has channels last."""
        n, *rest = (0 if size == 1 else step for step, size in zip(strides, shape, strict=True))
        grouped = self.shape.groups > 1
        spatial = len(self.x.shape) - 2 - grouped
        rest = rest[: 1 + grouped + spatial]  # without what is reduced of a window
        if last:
            rest = [*rest[spatial:], *rest[:spatial]]
        group, channel, *places = rest if grouped else (0, *rest)
        return (n, group, channel, *(0,) * (3 - spatial), *places)

    def each(self, shape: tuple[int, ...]) -> int:
        """Neighbouring channels of a group that share an element of an operand; 1 where it is broadcast over them."""
        spatial = len(self.x.shape) - 2 - (self.shape.groups > 1)
        channel = shape[(self.shape.groups > 1) + 1 + spatial * self.channels_last]
        return self.shape.columns // channel if channel > 1 else 1

    def weight_walk(self, strides: tuple[int, ...]) -> tuple[int, ...]:
        """Strides of the weights along (g, co, c, three taps)."""
        group, *rest = strides if self.shape.groups > 1 else (0, *strides)
        first, second, *taps = rest
        sides = (second, first) if self.transposed else (first, second)
        return (group, *sides, *(0,) * (3 - len(taps)), *taps)
