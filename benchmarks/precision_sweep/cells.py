"""The cells of the sweep: modules whose result jumps, each a scaled product of matrices, what is done to it, and what
is made of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

TERMS = 64  # of each sum
SHAPES: Mapping[int, tuple[int, int]] = {64: (16, 4), 4096: (64, 64), 1_000_000: (1000, 1000)}  # rows, columns

# What is done to the product h, by variation; `norm` is a layer norm.
VARIATIONS: Mapping[str, str] = {
    "plain": "h",
    "-1e9": "h.masked_fill(~open, -1e9)",
    "-inf": "h.masked_fill(~open, float('-inf'))",
    "squares": "h.square()",
    "norm": "norm(h)",
}
_BOUNDS: Mapping[str, float] = {"plain": 0.5, "-1e9": 0.5, "-inf": 0.5, "squares": 1e-6, "norm": 0.5}
_STEPS = 24.0  # of a quantised value to one

# What is made of y, by kind.
KINDS: Mapping[str, str] = {
    "compare": "y > bound",
    "round": "(y * steps).round().clamp(-127, 127).to(torch.int8)",
    "floor": "(y * steps).floor().clamp(-127, 127).to(torch.int8)",
    "top-k": "y.topk(most).indices",
    "argmax": "y.argmax(-1)",
    "mask to float": "(y > bound).float()",
    "fake quantisation": "(y * steps).round().clamp(-127, 127) / steps",
    "routing": "routed(y, most)",
}
ELEMENTWISE = ("compare", "round", "floor", "mask to float", "fake quantisation")

_ROUTED = '''
def routed(y, most):
    """The experts' weights: the largest few of a softmax, normalised, the others nought."""
    weights, chosen = y.softmax(-1).topk(most)
    return torch.zeros_like(y).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))
'''
_PROBLEM = """
import torch
import torch.nn.functional as F
from torch import nn

bound, steps, most = {bound}, {steps}, {most}
{routed}

def norm(h):
    return F.layer_norm(h, h.shape[-1:])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn({terms}, {columns}) / {terms} ** 0.5)
        scale = torch.rand({columns}) * 0.1 + 0.95
        scale[-1] = 1.5  # a last column that is often chosen
        self.scale = nn.Parameter(scale)

    def forward(self, x, open):
        h = (x @ self.weight) * self.scale
        y = {variation}
        return {kind}


def get_inputs():
    places = torch.rand({rows}, {columns}).topk({open}).indices
    open = torch.zeros({rows}, {columns}).scatter(1, places, 1.0) > 0
    return [torch.randn({rows}, {terms}), open]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    kind: str
    size: int
    variation: str

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.variation}, {self.size}"

    @property
    def problem(self) -> str:
        """The text of its problem file."""
        rows, columns = SHAPES[self.size]
        return _PROBLEM.format(
            bound=_BOUNDS[self.variation], steps=_STEPS, most=self._most, routed=_ROUTED, terms=TERMS, rows=rows,
            columns=columns, open=min(4, columns // 2), variation=VARIATIONS[self.variation], kind=KINDS[self.kind],
        )  # fmt: skip

    @property
    def _most(self) -> int:
        return 2 if SHAPES[self.size][1] > 4 else 1

    def made_of(self, h: Tensor, opened: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """What the module makes of its product (rows, columns), when layer norms are computed so."""
        names: dict[str, Any] = {"torch": torch, "F": F}
        exec(_ROUTED, names)  # our own text, of a table above
        names |= {"h": h, "open": opened, "norm": norm, "bound": _BOUNDS[self.variation], "steps": _STEPS}
        names |= {"most": self._most}
        names["y"] = eval(VARIATIONS[self.variation], names)
        result: Tensor = eval(KINDS[self.kind], names)
        return result


def cells(sizes: tuple[int, ...] = tuple(SHAPES)) -> tuple[Cell, ...]:
    """All cells of these sizes, the small ones first."""
    return tuple(Cell(kind, size, variation) for size, kind, variation in product(sizes, KINDS, VARIATIONS))
