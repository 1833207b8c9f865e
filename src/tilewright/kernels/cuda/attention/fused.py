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

from ...ops import DTYPES
from ..common.spec import ArraySpec, Function
from ..common.views import contiguous
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue
from ..gemm.host.recorded import is_aligned, run_on
from ..host.recorded_kernel import RecordedKernel, Strides, any_where_single, compiled, demanded, fake, settings
from .combine import CombineParts
from .kernel import AttentionKernel, Normaliser, has_lists, is_flagged, order_of
from .order import TileOrder
from .prepare import PreparePlanes
from .scores import ScoreMap, ScoreOperand
from .shape import AttentionShape
from .tiles import DEFAULTS, AttentionPoint, make_point
from .visits import InfiniteLayers, MapTiles, listed

_HERE = Path(__file__).resolve().parent
_LINE = 16  # bytes at whose multiples TMA reads
_FACTORS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """`factors`: query, key and value, of the shapes that `shape` says, columns last. `operands` are aligned with the
    scores: the domain's dimensions, with keys in the place of columns. `whole` and `inner` read `score` (the product
    times `scale`), `operands` and `index_<dimension>`; see `ScoreMap`. `kept` says which scores are not hidden, `clear`
    is the map of those. `sink`: see `Normaliser`. `sums`: the logarithms of the softmax's sums are a second output, of
    fp32, over the domain without its columns."""

    name: str
    shape: AttentionShape
    factors: tuple[ArraySpec, ...]
    operands: tuple[ArraySpec, ...]
    output: ArraySpec
    whole: Function | None = None
    inner: Function | None = None
    kept: Function | None = None
    clear: Function | None = None
    scale: float = 1.0
    softmax: bool = True
    empty_is_zero: bool = False
    sink: str = ""
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
    """An AttentionSpec with its knobs. It launches (outputs .., temporaries .., query, key, value, operands ..)."""

    defaults = DEFAULTS

    def _settle(self, knobs: dict[str, Any]) -> None:
        self.point: AttentionPoint = make_point(self.spec.shape, knobs)

    def _run(self, outs: list[Tensor], *given: Tensor) -> None:
        factors = [x if reads_by_tma(x) else x.clone(memory_format=torch.contiguous_format) for x in given[:_FACTORS]]
        tensors = (*factors, *given[_FACTORS:])
        wanted = temporaries(self.spec, self.point)
        between = [torch.empty(w.shape, dtype=DTYPES[w.dtype], device=given[0].device) for w in wanted]
        for tensor, own in zip(between, wanted, strict=True):
            if own.zero:
                tensor.zero_()
        run_on(self._launch([t.stride() for t in tensors]), *outs, *between, *tensors)

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
        made = [(o.dtype, o.shape) for o in spec.results] + [(w.dtype, w.shape) for w in temporaries(spec, self.point)]
        tensors = [*(_fake(dtype, shape, contiguous(shape), _LINE) for dtype, shape in made), *read]
        return compiled(_Launched(spec, self.point, strides), tensors, arch=self.arch, options=options)

    def demand(self, processors: int) -> dict[str, int | str]:
        p = self.point
        return demanded(
            self.spec, p, registers=max(p.registers), shared_bytes=p.staged_bytes, threads=p.threads,
            ctas=TileOrder(shape=self.spec.shape, tile_m=p.tile_m, tile_n=p.tile_n).work * p.splits,
            in_flight_bytes=p.staged_bytes // p.threads,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporary:
    """Memory of a call beside its operands and results. `zero`: it is zero before the launch."""

    dtype: str
    shape: tuple[int, ...]
    zero: bool = False


def temporaries(spec: AttentionSpec, point: AttentionPoint) -> list[Temporary]:
    """Of fp16x3 planes and largest magnitudes of query, key and value; flags and lists of tiles, where these are
    skipped; which layers of the value are not finite, where that counts; parts of results, and their logarithms."""
    s, found = spec.shape, list[Temporary]()
    layers = [prod(step.size for step in x.batch) for x in (s.query, s.key, s.value)]
    if point.planes == 2:
        found += [Temporary(dtype="f16", shape=(2, *o.shape)) for o in spec.factors]
        found += [Temporary(dtype="i32", shape=(n,), zero=True) for n in layers]
    if has_lists(s, point):
        order = order_of(s, point)
        masks = prod(s.domain[d] for d in s.sparse or ())
        found += [Temporary(dtype="i32", shape=n) for n in listed(masks, (order.row_tiles, order.key_tiles))]
    if is_flagged(s, point):
        found.append(Temporary(dtype="i32", shape=(layers[2],), zero=True))
    if point.splits > 1:
        found += [Temporary(dtype="f32", shape=(point.splits, *n)) for n in (s.domain, s.domain[:-1])]
    return found


class _Launched:
    """The launches of a call, as `entries.combine` calls them."""

    def __init__(self, spec: AttentionSpec, point: AttentionPoint, strides: list[tuple[int, ...]]) -> None:
        self.outputs, factors = len(spec.results), list(strides[:_FACTORS])
        self.point, self.between = point, len(temporaries(spec, point))
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
        inner = spec.clear if has_lists(spec.shape, point) else spec.inner
        scores = ScoreMap(spec.shape, point.tile_n, (spec.whole, inner), operands, outside)
        self.kernel = AttentionKernel(
            spec.shape, point, scores, dtype=spec.output.dtype, strides=factors, scale=spec.scale,
            normaliser=Normaliser(softmax=spec.softmax, empty_is_zero=spec.empty_is_zero, sink=spec.sink),
        )  # fmt: skip
        self.map = self.infinite = self.combine = None
        if has_lists(spec.shape, point):
            kept = ScoreMap(spec.shape, point.tile_n, (spec.kept, None), operands, outside)
            self.map = MapTiles(self.kernel.order, kept)
        if self.kernel.flagged:
            value = spec.factors[2]
            self.infinite = InfiniteLayers(spec.shape.value, value.shape, strides[2], value.dtype)
        if point.splits > 1:
            self.combine = CombineParts(
                spec.shape, point.splits, dtype=spec.output.dtype, softmax=spec.softmax,
                empty_is_zero=spec.empty_is_zero,
            )  # fmt: skip

    def __call__(self, tensors: tuple[Any, ...], stream: Any) -> None:
        outs, rest = tensors[: self.outputs], tensors[self.outputs :]
        between, given = list(rest[: self.between]), rest[self.between :]
        operands, count = given[_FACTORS:], len(self.splits)
        planes, more = between[:count], between[count : 2 * count]
        left = between[2 * count :]
        for split, x, to, most in zip(self.splits, given, planes, more, strict=False):
            split.launch(x, to, most, stream)
        if self.map is not None:
            flags, lists = left.pop(0), left.pop(0)
            self.map.launch(list(operands), flags, lists, stream)
            more.append(lists)
        if self.infinite is not None:
            more.append(left.pop(0))
            self.infinite.launch(given[2], more[-1], stream)
        made = outs if self.combine is None else left
        self.kernel.launch(planes or given[:_FACTORS], made, operands, more, stream)
        if self.combine is not None:
            partial, logarithms = left
            self.combine.launch(partial, logarithms, list(outs), stream)


def reads_by_tma(x: Tensor) -> bool:
    """Whether TMA reads a factor as it lies: columns side by side, everything else at multiples of 16 bytes."""
    steps = [step for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    lines = all(step > 0 and step * x.element_size() % _LINE == 0 for step in steps)
    return x.stride(-1) == 1 and lines and is_aligned(x)


def _fake(dtype: str, shape: tuple[int, ...], strides: Strides, align: int) -> Any:
    return fake(dtype, shape, any_where_single(shape, strides), align)
