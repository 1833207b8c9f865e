"""Launches of products on the CPU in place of compiled kernels: what these compute in torch, but for their rounding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tilewright.kernels.cuda.gemm.epilogue.batch_map import placed


class Launches(dict[Any, Callable[..., None]]):
    """To be given to a Gemm as what was compiled: there is a launch for everything. Epilogues add their operands.
    `asked`: what was looked for; `done`: what was launched, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.done: list[str] = []

    def __contains__(self, facts: object) -> bool:
        assert isinstance(facts, tuple)
        self.asked.append(facts[0])
        return True

    def __getitem__(self, facts: Any) -> Callable[..., None]:
        return partial(self._launch, facts)

    def _launch(self, facts: Any, *args: Any) -> None:
        self.done.append(facts[0])
        {"split": _split, "product": _product, "combine": _combine}[facts[0]](facts, *args)


def _split(facts: Any, x: Tensor, planes: Tensor, exponents: Tensor, chunk: int) -> None:
    number = planes.shape[2] // x.shape[2]
    rest = x
    for plane in range(number):
        planes[..., plane::number].copy_(rest)
        rest = rest - planes[..., plane::number].float()
    exponents.zero_()


def _product(facts: Any, *args: Any) -> None:
    x, y, c, *rest = args
    *more, _, splits, chunk = rest
    point, names = facts[2].point, facts[4]
    if point.stream_k:
        *more, flags, parts = more
        assert not flags.any() and parts.numel() == len(flags) * point.tile_m * point.tile_n
        flags.fill_(1)
        parts.fill_(float("nan"))
    batch = c.shape[2] // splits
    for layer in range(c.shape[2]):
        of, begin = layer // splits, layer % splits * chunk
        sides = [
            _whole(t, placed(of, part), _planes(t, point))[:, begin : begin + chunk]
            for t, part in zip((x, y), facts[12], strict=True)
        ]
        read = _added(dict(zip(names, more[len(more) - len(names) :], strict=True)), of, c, dict(facts[13:-1]))
        c[..., layer].copy_(sides[0] @ sides[1].t() + read)
    assert batch * splits == c.shape[2]


def _planes(t: Tensor, point: Any) -> int:
    return point.planes if point.scales and t.dtype.itemsize == 2 else 1


def _whole(t: Tensor, of: int, planes: int) -> Tensor:
    """A matrix of the batch, put together of its planes."""
    at = of % (t.shape[2] // planes) * planes
    return sum((t[..., at + i].double() for i in range(planes)), t.new_zeros(()).double())


def _combine(facts: Any, partial_sums: Tensor, c: Tensor, *operands: Tensor) -> None:
    splits = partial_sums.shape[2] // c.shape[2]
    for of in range(c.shape[2]):
        total = partial_sums[..., of * splits : (of + 1) * splits].sum(-1)
        c[..., of].copy_(total + _added(dict(zip(facts[3], operands, strict=True)), of, c, dict(facts[6:-1])))


def _added(operands: dict[str, Tensor], of: int, c: Tensor, parts: dict[str, Any]) -> Any:
    """The sum of what is read beside this layer of C."""
    total: Any = 0
    for name, x in operands.items():
        rows, columns, layers = parts.get(name, (None, None, None))
        mine = x[..., placed(of, layers)]
        for d, part in enumerate((rows, columns)):
            mine = mine.index_select(d, torch.tensor([placed(i, part) for i in range(c.shape[d])]))
        total = total + mine
    return total
