"""What a generated `fused_K.py` of an attention's gradients tells the skeletons, and how it is called.

    (query gradient, key gradient, value gradient, further ..) of (query, key, value, upstream, operands ..)

Factors may lie in any order; what TMA can't read is copied first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from cutlass import cute
from torch import Tensor

from ...ops import DTYPES
from ..attention.fused import reads_by_tma
from ..attention.scores import ScoreOperand
from ..common import cache
from ..common.math import ELEMENT_TYPES
from ..common.spec import ArraySpec, Function
from ..common.views import ITEM_BYTES
from ..gemm.host import entries
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue, KernelStore
from ..gemm.host.recorded import RecordedLaunch, Results, run_on
from ..rows.plan import Gpu
from .kernel import GradientKernel
from .maps import GradientMap
from .roles import DEFAULTS, GradientPoint, Role, make_point, roles_of
from .shape import GradientShape

ARCH = "sm_90a"
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
    def further(self) -> tuple[tuple[int, ...], ...]:
        """Of each further result the dimensions of the batch over which it is summed."""
        batch = self.shape.batch
        return tuple(tuple(d for d, n in enumerate(batch) if o.shape[d] < n) for o in self.outputs[3:])

    def made_by(self, role: Role) -> tuple[int, ...]:
        """The numbers of the outputs that a role makes."""
        if role.further >= 0:
            return (3 + role.further,)
        return tuple(1 + made for made in role.makes) if role.by_keys else (0,)


class FusedAttentionBackward:
    """A GradientSpec with its knobs. Calling it launches on torch's current stream; what it compiles is kept on
    disk."""

    def __init__(self, spec: GradientSpec, knobs: dict[str, Any], *, source: str = "", arch: str = ARCH) -> None:
        self.spec, self.arch = spec, arch
        self.knobs = dict(DEFAULTS)
        self.store = KernelStore(source=Path(source) if source else None)
        self.configure(**knobs)

    @property
    def objects(self) -> set[Path]:
        """The files in which what it compiled is kept."""
        return self.store.objects

    def configure(self, **knobs: Any) -> None:
        """Replace settings. Raises ValueError, and replaces none, where they are unknown or don't fit together."""
        wanted = self.knobs | knobs
        self.point: GradientPoint = make_point(self.spec.shape, wanted, self.spec.further)
        self.knobs.update(wanted)
        self._recorded = RecordedLaunch(self._steps, len(self.spec.read))

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The outputs, freshly allocated. Raises ValueError on what is not of the Spec's shapes and dtypes. On meta
        tensors it compiles what tensors of these strides need, and launches nothing."""
        made = self._recorded.call(*operands)
        return made if isinstance(made, tuple) else (made,)

    def _steps(self, *given: Tensor) -> Results:
        """The same, with nothing known of earlier calls."""
        spec = self.spec
        for tensor, own in zip(given, spec.read, strict=True):
            if tuple(tensor.shape) != own.shape or tensor.dtype != DTYPES[own.dtype]:
                raise ValueError(f"{spec.name}: {own.dtype} {own.shape} is wanted, not {tensor.dtype} {tensor.shape}")
        factors = [x if reads_by_tma(x) else x.clone(memory_format=torch.contiguous_format) for x in given[:_FACTORS]]
        tensors = (*factors, *given[_FACTORS:])
        outs = [torch.empty(o.shape, dtype=DTYPES[o.dtype], device=given[0].device) for o in spec.outputs]
        run_on(self._launch([t.stride() for t in tensors]), *outs, *tensors)
        return tuple(outs)

    def _launch(self, strides: list[tuple[int, ...]]) -> Launch:
        facts = ("attention backward", self.arch, self.point, tuple(strides), cache.contents(_HERE))
        epilogue = Epilogue(function=self.spec.whole, names=tuple(o.name for o in self.spec.operands))
        return self.store.obtain(facts, epilogue, lambda: self.compile(strides))

    def compile(self, strides: list[tuple[int, ...]], options: str = "") -> Launch:
        """A launch of (outputs .., query, key, value, upstream, operands ..) for tensors of these strides; no GPU
        needed."""
        spec = self.spec
        outs = [_fake(o.dtype, o.shape, _contiguous(o.shape), _LINE) for o in spec.outputs]
        read = [
            _fake(o.dtype, o.shape, walk, _LINE if i < _FACTORS else 0)
            for i, (o, walk) in enumerate(zip(spec.read, strides, strict=True))
        ]
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        made: Launch = cute.compile(
            entries.combine(len(outs) + len(read)), _Launched(spec, self.point, strides), *outs, *read, stream,
            options=f"--enable-tvm-ffi --gpu-arch {self.arch} {options}".rstrip(),
        )  # fmt: skip
        return made

    def prepare(self, device: Gpu) -> None:
        """Compile, or find on disk, what operands need that lie as the Spec says; no GPU needed."""
        self(*(torch.empty_strided(o.shape, o.strides or _contiguous(o.shape), dtype=DTYPES[o.dtype], device="meta")
               for o in self.spec.read))  # fmt: skip

    def demand(self, processors: int) -> dict[str, int | str]:
        """What the largest of the kernels takes, operands lying as the Spec says (see `cuda.demand`)."""
        spec, p = self.spec, self.point
        strides = [o.strides or _contiguous(o.shape) for o in spec.read]
        kernels = _Launched(spec, p, strides).kernels
        staged = max(kernel.role.staged_bytes(p) for kernel, _ in kernels)
        return {
            "plan": hashlib.sha256(repr(p).encode()).hexdigest()[:16],
            "registers": max(p.registers),
            "local_bytes": 0,
            "shared_bytes": staged,
            "threads": p.threads,
            "ctas": sum(kernel.work for kernel, _ in kernels),
            "in_flight_bytes": staged // p.threads,
            "moved_bytes": sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in (*spec.read, *spec.outputs)),
        }


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


def _fake(dtype: str, shape: tuple[int, ...], strides: tuple[Any, ...], align: int = 0) -> Any:
    walk = tuple(cute.sym_int64() if n == 1 else step for n, step in zip(shape, strides, strict=True))
    align = align or ITEM_BYTES[dtype]
    return cute.runtime.make_fake_tensor(ELEMENT_TYPES[dtype], shape, stride=walk, assumed_align=align)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
