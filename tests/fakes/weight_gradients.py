"""Gradients of a convolution's weight for tests: a case, torch's call of it, and the pattern that is found."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fakes.modules import Applies
from fakes.realisers import cuda
from tilewright.facts.pattern import Pattern
from tilewright.frontend.autodiff import with_depthwise
from tilewright.frontend.trace import trace
from tilewright.fusion import match


@dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution of x by w. `last`: x and the upstream gradient lie in channels-last."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    dtype: torch.dtype = torch.float32
    last: bool = False

    @property
    def name(self) -> str:
        words = ["x".join(map(str, self.x)), "x".join(map(str, self.w)), f"s{self.stride}p{self.padding}"]
        words += [f"d{self.dilation}", f"g{self.groups}", "t" * self.transposed, "last" * self.last]
        return "-".join((*filter(None, words), str(self.dtype).split(".")[1]))

    @property
    def out(self) -> tuple[int, ...]:
        columns = self.w[1] * self.groups if self.transposed else self.w[0]
        s, p, d = self.stride, self.padding, self.dilation
        sides = zip(self.x[2:], self.w[2:], strict=True)
        places = [(n - 1) * s - 2 * p + d * (t - 1) + 1 if self.transposed else (n + 2 * p - d * (t - 1) - 1) // s + 1
                  for n, t in sides]  # fmt: skip
        return (self.x[0], columns, *places)

    def inputs(self, device: str, *, spread: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """The upstream gradient, x and w; `spread`: of channels of very different size."""
        rand = torch.Generator(device=device).manual_seed(5)
        made = [torch.randn(shape, generator=rand, device=device) for shape in (self.out, self.x, self.w)]
        if spread:
            for t in made[:2]:
                t *= 10.0 ** torch.linspace(-15, 8, t.shape[1], device=device).view(-1, *(1,) * (t.ndim - 2))
        made = [t.to(self.dtype) for t in made]
        if self.last:
            memory = torch.channels_last if len(self.x) == 4 else torch.channels_last_3d
            made[:2] = [t.to(memory_format=memory) for t in made[:2]]
        g, x, w = made
        return g, x, w

    def backward(self, g: Tensor, x: Tensor, w: Tensor) -> Tensor:
        rank = len(self.x) - 2
        stride, padding, dilation = ([n] * rank for n in (self.stride, self.padding, self.dilation))
        made = torch.ops.aten.convolution_backward(
            g, x, w, None, stride, padding, dilation, self.transposed, [0] * rank, self.groups, [False, True, False]
        )  # fmt: skip
        return made[1]  # type: ignore[no-any-return]

    def pattern(self) -> Pattern:
        """What is found, with its points; the realiser must propose it."""
        with torch.no_grad():
            graph = with_depthwise(trace(Applies(self.backward), self.inputs("cpu"), {}))
        (found,) = match(graph, unsupported=cuda.unsupported, space=cuda.space, allow_tf32=True).patterns
        return found
