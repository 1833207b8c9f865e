"""What a generated `fused_K.py` of an attention tells the skeleton, and how it is called: like any other fused kernel.

    out (*batch, columns) = softmax(score(query . key, operands ..)) @ value

Query, key and value may lie in any order; what TMA can't read (columns apart, lines that don't begin at multiples of 16
bytes) is copied first.
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
from ..common import cache
from ..common.math import ELEMENT_TYPES
from ..common.spec import ArraySpec, Function
from ..common.views import ITEM_BYTES
from ..gemm.host import entries
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue, KernelStore
from ..gemm.host.recorded import RecordedLaunch, Results, is_aligned, run_on
from ..rows.plan import Gpu
from .kernel import AttentionKernel
from .order import TileOrder
from .prepare import PreparePlanes
from .scores import ScoreMap, ScoreOperand
from .shape import AttentionShape
from .tiles import DEFAULTS, AttentionPoint, make_point

ARCH = "sm_90a"
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
    def written(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and dtype of each output."""
        more = ((self.output.shape[:-1], "f32"),) if self.sums else ()
        return ((self.output.shape, self.output.dtype), *more)


class FusedAttention:
    """An AttentionSpec with its knobs. Calling it launches on torch's current stream; what it compiles is kept on
    disk."""

    def __init__(self, spec: AttentionSpec, knobs: dict[str, Any], *, source: str = "", arch: str = ARCH) -> None:
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
        self.point: AttentionPoint = make_point(self.spec.shape, wanted)
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
        device = given[0].device
        outs = [torch.empty(shape, dtype=DTYPES[dtype], device=device) for shape, dtype in spec.written]
        planes = [torch.empty(shape, dtype=torch.float16, device=device) for shape, _ in self._between()]
        largest = [torch.empty((n,), dtype=torch.int32, device=device).zero_() for _, n in self._between()]
        launch = self._launch([t.stride() for t in tensors])
        run_on(launch, *outs, *planes, *largest, *tensors)
        return tuple(outs) if len(outs) > 1 else outs[0]

    def _between(self) -> list[tuple[tuple[int, ...], int]]:
        """Of each factor that is split the shape of its planes, and how many layers it has."""
        if self.point.planes == 1:
            return []
        s = self.spec.shape
        counts = [prod(step.size for step in x.batch) for x in (s.query, s.key, s.value)]
        return [((2, *o.shape), n) for o, n in zip(self.spec.factors, counts, strict=True)]

    def _launch(self, strides: list[tuple[int, ...]]) -> Launch:
        facts = ("attention", self.arch, self.point, tuple(strides), cache.contents(_HERE))
        names = tuple(o.name for o in self.spec.operands)
        epilogue = Epilogue(function=self.spec.whole, names=names)  # the source's text says what `inner` is
        return self.store.obtain(facts, epilogue, lambda: self.compile(strides))

    def compile(self, strides: list[tuple[int, ...]], options: str = "") -> Launch:
        """A launch of (outputs .., planes .., largest .., query, key, value, operands ..) for tensors of these strides;
        no GPU needed."""
        spec = self.spec
        outs = [_fake(dtype, shape, _contiguous(shape), _LINE) for shape, dtype in spec.written]
        read = [
            _fake(o.dtype, o.shape, walk, _LINE if i < _FACTORS else 0)
            for i, (o, walk) in enumerate(zip(spec.read, strides, strict=True))
        ]
        planes = [_fake("f16", shape, _contiguous(shape), _LINE) for shape, _ in self._between()]
        largest = [_fake("i32", (n,), (1,), _LINE) for _, n in self._between()]
        tensors = (*outs, *planes, *largest, *read)
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        made: Launch = cute.compile(
            entries.combine(len(tensors)), _Launched(spec, self.point, strides), *tensors, stream,
            options=f"--enable-tvm-ffi --gpu-arch {self.arch} {options}".rstrip(),
        )  # fmt: skip
        return made

    def prepare(self, device: Gpu) -> None:
        """Compile, or find on disk, what operands need that lie as the Spec says; no GPU needed."""
        self(*(torch.empty_strided(o.shape, o.strides or _contiguous(o.shape), dtype=DTYPES[o.dtype], device="meta")
               for o in self.spec.read))  # fmt: skip

    def demand(self, processors: int) -> dict[str, int | str]:
        """What the kernel takes, operands lying as the Spec says (see `cuda.demand`)."""
        spec, p = self.spec, self.point
        return {
            "plan": hashlib.sha256(repr(p).encode()).hexdigest()[:16],
            "registers": max(p.registers),
            "local_bytes": 0,
            "shared_bytes": p.staged_bytes,
            "threads": p.threads,
            "ctas": TileOrder(shape=spec.shape, tile_m=p.tile_m, tile_n=p.tile_n).work,
            "in_flight_bytes": p.staged_bytes // p.threads,
            "moved_bytes": sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in (*spec.read, spec.output)),
        }


class _Launched:
    """The launch of a call, as `entries.combine` calls it."""

    def __init__(self, spec: AttentionSpec, point: AttentionPoint, strides: list[tuple[int, ...]]) -> None:
        self.outputs, factors = len(spec.written), list(strides[:_FACTORS])
        self.splits: list[PreparePlanes] = []
        if point.planes == 2:
            layers = (spec.shape.query, spec.shape.key, spec.shape.value)
            self.splits = [
                PreparePlanes(own, o.shape, walk)
                for own, o, walk in zip(layers, spec.factors, strides[:_FACTORS], strict=True)
            ]
            factors = [_contiguous(o.shape) for o in spec.factors]
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


def _fake(dtype: str, shape: tuple[int, ...], strides: tuple[Any, ...], align: int = 0) -> Any:
    walk = tuple(cute.sym_int64() if n == 1 else step for n, step in zip(shape, strides, strict=True))
    return cute.runtime.make_fake_tensor(
        ELEMENT_TYPES[dtype], shape, stride=walk, assumed_align=align or ITEM_BYTES[dtype]
    )


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
