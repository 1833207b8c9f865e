"""What a generated `fused_K.py` of an attention tells the skeleton, and how it is called: like any other fused kernel.

    out (*batch, columns) = softmax(score(query . key, operands ..)) @ value

Query, key and value may lie in any order; what TMA can't read (columns apart, lines that don't begin at multiples of 16
bytes) is copied first.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..common.spec import ArraySpec, Function
from ..common.views import contiguous
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue
from ..gemm.host.recorded import is_aligned, run_on
from ..host.recorded_kernel import RecordedKernel, Strides, any_where_single, compiled, demanded, fake, settings
from .kernel import AttentionKernel
from .order import TileOrder
from .prepare import PreparePlanes
from .scores import ScoreMap, ScoreOperand
from .shape import AttentionShape
from .tiles import DEFAULTS, AttentionPoint, make_point

_HERE = Path(__file__).resolve().parent
_LINE = 16  # bytes at whose multiples TMA reads
_FACTORS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """`factors`: query, key and value, of the shapes that `shape` says, columns last. `operands` are aligned with the
    scores: the domain's dimensions, with keys in the place of columns. `whole` and `inner` read `score` (the product
    times `scale`), `operands` and `index_<dimension>`; see `ScoreMap`. `sums`: the logarithms of the softmax's sums are
    a second output, of fp32, over the domain without its columns."""

    name: str
    shape: AttentionShape
    factors: tuple[ArraySpec, ...]
    operands: tuple[ArraySpec, ...]
    output: ArraySpec
    whole: Function | None = None
    inner: Function | None = None
    scale: float = 1.0
    softmax: bool = True
    empty_is_zero: bool = False
    sums: bool = False

    @property
    def read(self) -> tuple[ArraySpec, ...]:
        """What it is called with, in order."""
        return (*self.factors, *self.operands)

    @property
    def results(self) -> tuple[ArraySpec, ...]:
        """What a call gives."""
        more = (ArraySpec(name="sums", dtype="f32", shape=self.output.shape[:-1]),) if self.sums else ()
        return (self.output, *more)


class FusedAttention(RecordedKernel[AttentionSpec]):
    """An AttentionSpec with its knobs. It launches (outputs .., planes .., largest .., query, key, value, operands
    ..)."""

    defaults = DEFAULTS

    def _settle(self, knobs: dict[str, Any]) -> None:
        self.point: AttentionPoint = make_point(self.spec.shape, knobs)

    def _run(self, outs: list[Tensor], *given: Tensor) -> None:
        factors = [x if reads_by_tma(x) else x.clone(memory_format=torch.contiguous_format) for x in given[:_FACTORS]]
        tensors = (*factors, *given[_FACTORS:])
        device = given[0].device
        planes = [torch.empty(shape, dtype=torch.float16, device=device) for shape, _ in self._between()]
        largest = [torch.empty((n,), dtype=torch.int32, device=device).zero_() for _, n in self._between()]
        run_on(self._launch([t.stride() for t in tensors]), *outs, *planes, *largest, *tensors)

    def _between(self) -> list[tuple[tuple[int, ...], int]]:
        """Of each factor that is split the shape of its planes, and how many layers it has."""
        if self.point.planes == 1:
            return []
        s = self.spec.shape
        counts = [prod(step.size for step in x.batch) for x in (s.query, s.key, s.value)]
        return [((2, *o.shape), n) for o, n in zip(self.spec.factors, counts, strict=True)]

    def _launch(self, strides: list[Strides]) -> Launch:
        names = tuple(o.name for o in self.spec.operands)
        epilogue = Epilogue(function=self.spec.whole, names=names)  # the source's text says what `inner` is
        facts = settings("attention", self.arch, self.point, strides, _HERE)
        return self.store.obtain(facts, epilogue, lambda: self.compile(strides))

    def compile(self, strides: list[Strides], options: str = "") -> Launch:
        spec = self.spec
        read = [
            _fake(o.dtype, o.shape, walk, _LINE if i < _FACTORS else 0)
            for i, (o, walk) in enumerate(zip(spec.read, strides, strict=True))
        ]
        between = self._between()
        made: list[tuple[str, tuple[int, ...]]] = [
            *((o.dtype, o.shape) for o in spec.results), *(("f16", shape) for shape, _ in between),
            *(("i32", (n,)) for _, n in between),
        ]  # fmt: skip
        tensors = [*(_fake(dtype, shape, contiguous(shape), _LINE) for dtype, shape in made), *read]
        return compiled(_Launched(spec, self.point, strides), tensors, arch=self.arch, options=options)

    def demand(self, processors: int) -> dict[str, int | str]:
        p = self.point
        return demanded(
            self.spec, p, registers=max(p.registers), shared_bytes=p.staged_bytes, threads=p.threads,
            ctas=TileOrder(shape=self.spec.shape, tile_m=p.tile_m, tile_n=p.tile_n).work,
            in_flight_bytes=p.staged_bytes // p.threads,
        )  # fmt: skip


class _Launched:
    """The launch of a call, as `entries.combine` calls it."""

    def __init__(self, spec: AttentionSpec, point: AttentionPoint, strides: list[tuple[int, ...]]) -> None:
        self.outputs, factors = len(spec.results), list(strides[:_FACTORS])
        self.splits: list[PreparePlanes] = []
        if point.planes == 2:
            layers = (spec.shape.query, spec.shape.key, spec.shape.value)
            self.splits = [
                PreparePlanes(own, o.shape, walk)
                for own, o, walk in zip(layers, spec.factors, strides[:_FACTORS], strict=True)
            ]
            factors = [contiguous(o.shape) for o in spec.factors]
        operands = [
            ScoreOperand(
                name=o.name, dtype=o.dtype,
                strides=tuple(0 if n == 1 else step for n, step in zip(o.shape, walk, strict=True)),
            )
            for o, walk in zip(spec.operands, strides[_FACTORS:], strict=True)
        ]  # fmt: skip
        outside = float("-inf") if spec.softmax else 0.0
        scores = ScoreMap(spec.shape, point.tile_n, (spec.whole, spec.inner), operands, outside)
        self.kernel = AttentionKernel(
            spec.shape, point, scores, dtype=spec.output.dtype, strides=factors, scale=spec.scale,
            softmax=spec.softmax, empty_is_zero=spec.empty_is_zero,
        )  # fmt: skip

    def __call__(self, tensors: tuple[Any, ...], stream: Any) -> None:
        count = len(self.splits)
        outs, rest = tensors[: self.outputs], tensors[self.outputs :]
        planes, largest, given = rest[:count], rest[count : 2 * count], rest[2 * count :]
        for split, x, to, most in zip(self.splits, given, planes, largest, strict=False):
            split.launch(x, to, most, stream)
        self.kernel.launch(planes or given[:_FACTORS], outs, given[_FACTORS:], largest, stream)


def reads_by_tma(x: Tensor) -> bool:
    """Whether TMA reads a factor as it lies: columns side by side, everything else at multiples of 16 bytes."""
    steps = [step for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    lines = all(step > 0 and step * x.element_size() % _LINE == 0 for step in steps)
    return x.stride(-1) == 1 and lines and is_aligned(x)


def _fake(dtype: str, shape: tuple[int, ...], strides: Strides, align: int) -> Any:
    return fake(dtype, shape, any_where_single(shape, strides), align)
