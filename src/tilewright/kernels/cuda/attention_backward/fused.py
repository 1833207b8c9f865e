"""What a generated `fused_K.py` of an attention's gradients tells the skeletons, and how it is called.

    (query gradient, key gradient, value gradient, further ..) of (query, key, value, upstream, operands ..)

Factors may lie in any order; what TMA can't read is copied first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attention.fused import reads_by_tma
from ..attention.scores import ScoreOperand
from ..common.spec import ArraySpec, Function
from ..common.views import contiguous
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue
from ..gemm.host.recorded import run_on
from ..host.recorded_kernel import RecordedKernel, Strides, any_where_single, compiled, demanded, fake, settings
from .kernel import GradientKernel
from .maps import GradientMap
from .roles import DEFAULTS, GradientPoint, Role, make_point, roles_of
from .shape import GradientShape

_HERE = Path(__file__).resolve().parent
_LINE = 16  # bytes at whose multiples TMA reads
_FACTORS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSpec:
    """`factors`: query, key, value and upstream, columns last. `operands` are aligned with (batch .., queries, keys).
    `whole` and `inner` read `score`, `gradient`, `operands` and `index_<dimension>`; see `GradientMap`. `outputs`: the
    gradients of query, key and value, with size 1 along what is summed, then further results of the map."""

    name: str
    shape: GradientShape
    factors: tuple[ArraySpec, ...]
    operands: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    whole: Function
    inner: Function

    @property
    def read(self) -> tuple[ArraySpec, ...]:
        """What it is called with, in order."""
        return (*self.factors, *self.operands)

    @property
    def results(self) -> tuple[ArraySpec, ...]:
        """What a call gives."""
        return self.outputs

    @property
    def further(self) -> tuple[tuple[int, ...], ...]:
        """Of each further result the dimensions of the batch over which it is summed."""
        batch = self.shape.batch
        return tuple(tuple(d for d, n in enumerate(batch) if o.shape[d] < n) for o in self.outputs[3:])

    def made_by(self, role: Role) -> tuple[int, ...]:
        """The numbers of the outputs that a role makes."""
        if role.further >= 0:
            return (3 + role.further,)
        return tuple(1 + made for made in role.makes) if role.by_keys else (0,)


class FusedAttentionBackward(RecordedKernel[GradientSpec]):
    """A GradientSpec with its knobs. It launches (outputs .., query, key, value, upstream, operands ..)."""

    defaults = DEFAULTS

    def _settle(self, knobs: dict[str, Any]) -> None:
        self.point: GradientPoint = make_point(self.spec.shape, knobs, self.spec.further)

    def _run(self, outs: list[Tensor], *given: Tensor) -> None:
        factors = [x if reads_by_tma(x) else x.clone(memory_format=torch.contiguous_format) for x in given[:_FACTORS]]
        tensors = (*factors, *given[_FACTORS:])
        run_on(self._launch([t.stride() for t in tensors]), *outs, *tensors)

    def _launch(self, strides: list[Strides]) -> Launch:
        epilogue = Epilogue(function=self.spec.whole, names=tuple(o.name for o in self.spec.operands))
        facts = settings("attention backward", self.arch, self.point, strides, _HERE)
        return self.store.obtain(facts, epilogue, lambda: self.compile(strides))

    def compile(self, strides: list[Strides], options: str = "") -> Launch:
        spec = self.spec
        outs = [_fake(o.dtype, o.shape, contiguous(o.shape), _LINE) for o in spec.results]
        read = [
            _fake(o.dtype, o.shape, walk, _LINE if i < _FACTORS else 0)
            for i, (o, walk) in enumerate(zip(spec.read, strides, strict=True))
        ]
        return compiled(_Launched(spec, self.point, strides), [*outs, *read], arch=self.arch, options=options)

    def demand(self, processors: int) -> dict[str, int | str]:
        """Of the largest of the kernels."""
        spec, p = self.spec, self.point
        kernels = _Launched(spec, p, [o.strides or contiguous(o.shape) for o in spec.read]).kernels
        staged = max(kernel.role.staged_bytes(p) for kernel, _ in kernels)
        return demanded(
            spec, p, registers=max(p.registers), shared_bytes=staged, threads=p.threads,
            ctas=sum(kernel.work for kernel, _ in kernels), in_flight_bytes=staged // p.threads,
        )  # fmt: skip


class _Launched:
    """The launches of a call, as `entries.combine` calls them: each kernel with the outputs that it makes."""

    def __init__(self, spec: GradientSpec, point: GradientPoint, strides: list[tuple[int, ...]]) -> None:
        self.outputs = len(spec.outputs)
        operands = [
            ScoreOperand(
                name=o.name, dtype=o.dtype,
                strides=tuple(0 if n == 1 else step for n, step in zip(o.shape, walk, strict=True)),
            )
            for o, walk in zip(spec.operands, strides[_FACTORS:], strict=True)
        ]  # fmt: skip
        self.kernels: list[tuple[GradientKernel, tuple[int, ...]]] = []
        for role in roles_of(spec.shape, point, spec.further):
            made = spec.made_by(role)
            map_ = GradientMap(
                spec.shape, (spec.whole, spec.inner), operands, by_keys=role.by_keys, tile_n=point.tile_n
            )  # fmt: skip
            kernel = GradientKernel(
                spec.shape, point, role, map_, dtypes=(spec.factors[0].dtype, spec.outputs[made[0]].dtype),
                strides=strides[:_FACTORS],
            )  # fmt: skip
            self.kernels.append((kernel, made))

    def __call__(self, tensors: tuple[Any, ...], stream: Any) -> None:
        outs, given = tensors[: self.outputs], tensors[self.outputs :]
        for kernel, made in self.kernels:
            kernel.launch(given[:_FACTORS], [outs[i] for i in made], given[_FACTORS:], stream)


def _fake(dtype: str, shape: tuple[int, ...], strides: Strides, align: int) -> Any:
    return fake(dtype, shape, any_where_single(shape, strides), align)
