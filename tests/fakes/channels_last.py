"""Convolutions of 16 bits in channels-last for tests of their skeletons: Specs with an epilogue, tensors, and truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.convolutions import channels_last, shape_of, spec_of
from tilewright.kernels.cuda.common import math as m
from tilewright.kernels.cuda.common.spec import ArraySpec, Function
from tilewright.kernels.cuda.conv.fused import ConvSpec, FusedConv
from tilewright.kernels.ops import DTYPES


def spec_last(x: Any, w: Any, how: dict[str, Any], dtype: str = "f16") -> ConvSpec:
    """Without an epilogue."""
    shape = replace(shape_of(x, w, **how), channels_inside=True)
    return replace(spec_of(shape, x, w, how, dtype, last=True), shape=shape)


def convolved(x: Tensor, w: Tensor, how: dict[str, Any]) -> Tensor:
    """What torch makes of it."""
    named = dict(how)
    kind = "conv_transpose" if named.pop("transposed", False) else "conv"
    made: Tensor = getattr(F, f"{kind}{x.ndim - 2}d")(x, w, **named)
    return made


def relu(product: Any, bias: Any) -> Any:
    return m.maximum(product + bias, 0.0, "f32")


def added(product: Any, bias: Any, added: Any) -> Any:
    return m.maximum(product + bias + added, 0.0, "f32")


def gated(product: Any, bias: Any, gate: Any) -> Any:
    return (product + bias) * gate


def normed(product: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return m.maximum((product - a) * m.rsqrt(b * b + 1e-5, "f32") * c + d + e, 0.0, "f32")


def both(product: Any, bias: Any) -> Any:
    return product + bias, (product + bias) * 2.0


# An epilogue, the same in torch, and its operands: "c" of channels, "n" of samples and channels, "y" as the result.
AFTER: dict[str, tuple[Function | None, Any, str]] = {
    "": (None, lambda y: (y,), ""),
    "relu": (relu, lambda y, b: ((y + b).relu(),), "c"),
    "added": (added, lambda y, b, e: ((y + b + e).relu(),), "cy"),
    "gated": (gated, lambda y, b, g: ((y + b) * g,), "cn"),
    "normed": (normed, lambda y, a, b, c, d, e: (((y - a) * (b * b + 1e-5).rsqrt() * c + d + e).relu(),), "ccccy"),
    "both": (both, lambda y, b: (y + b, (y + b) * 2), "c"),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution with what AFTER has under `after`; `how`: arguments of torch's; `weights`: of channels-last if
    "last"."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    dtype: str = "f16"
    after: str = ""
    how: tuple[tuple[str, Any], ...] = ()
    weights: str = ""

    @property
    def name(self) -> str:
        words = ["x".join(map(str, self.x)), "x".join(map(str, self.w)), *(f"{k}{v}" for k, v in self.how)]
        return "-".join(word.replace(" ", "") for word in (*words, self.dtype, self.after, self.weights) if word)

    @property
    def spec(self) -> ConvSpec:
        """With the epilogue."""
        spec = spec_last(self.x, self.w, dict(self.how), self.dtype)
        function, _, reads = AFTER[self.after]
        whole = spec.outputs[0].shape
        behind = 2 if spec.shape.groups > 1 else 1
        ones = (1,) * (len(whole) - behind - 1)
        shapes = {"c": (1, *ones, *whole[-behind:]), "n": (whole[0], *ones, *whole[-behind:]), "y": whole}
        names = function.__code__.co_varnames[1 : 1 + len(reads)] if function is not None else ()
        operands = tuple(
            ArraySpec(name=n, dtype=self.dtype, shape=shapes[kind]) for n, kind in zip(names, reads, strict=True)
        )
        outputs = spec.outputs * (2 if self.after == "both" else 1)
        return replace(spec, operands=operands, epilogue=function, outputs=outputs)

    def inputs(self, device: str) -> list[Tensor]:
        """x in channels-last, the weights and the operands."""
        spec = self.spec
        torch.manual_seed(7)
        x, w, *rest = (torch.randn(o.shape, device=device).to(DTYPES[o.dtype]) for o in spec.read)
        x = torch.empty_strided(
            x.shape, channels_last(spec.x.shape, spec.shape.groups), dtype=x.dtype, device=device
        ).copy_(x)  # fmt: skip
        if self.weights == "last" and spec.shape.groups == 1:
            w = w.movedim(1, -1).contiguous().movedim(-1, 1)
        return [x, w, *rest]

    def truth(self, given: list[Tensor]) -> tuple[Tensor, ...]:
        """The outputs in float64."""
        spec = self.spec
        x, w, *rest = (g.double() for g in given)
        y = convolved(x.reshape(self.x), w.reshape(self.w), dict(self.how))
        y = y.movedim(1, -1).reshape(spec.outputs[0].shape)
        made: tuple[Tensor, ...] = AFTER[self.after][1](y, *rest)
        return made

    def error(self, knobs: dict[str, Any], device: str = "cuda") -> tuple[float, float]:
        """Relative to float64, of the outputs the largest: in the norm, and the worst element's over the largest.
        Twice, into memory that held something else: what is not written shows."""
        given = self.inputs(device)
        fused, truth = FusedConv(self.spec, knobs), self.truth(given)
        errors = []
        for _ in range(2):
            held = [torch.full(t.shape, float("nan"), dtype=given[0].dtype, device=device) for t in truth]
            del held  # whose memory the outputs get
            for made, wanted in zip(fused(*given), truth, strict=True):
                off = (made.double() - wanted).abs()
                errors.append((float(off.norm() / wanted.norm()), float(off.max() / wanted.abs().max())))
        worst = [e if all(x == x for x in e) else (float("inf"),) * 2 for e in errors]
        return max(e for e, _ in worst), max(e for _, e in worst)
