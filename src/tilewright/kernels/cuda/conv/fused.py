"""What a generated `fused_K.py` of a convolution tells the skeleton, and how it is called: like any other fused kernel.

    y (N, Co, *o) = epilogue(convolution(x (N, C, *i), w (Co, C, *t)), operands ..)

With groups x is (N, G, C, *i), w (G, Co, C, *t), y (N, G, Co, *o); a transposed convolution's w has C before Co.
Weights are packed, and samples looked at for their largest, anew in every call: nothing derived from either outlives
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from cutlass import Int32, cute
from torch import Tensor

from ...ops import DTYPES
from ..common import cache
from ..common.math import ELEMENT_TYPES
from ..common.spec import ArraySpec, Function
from ..common.views import ITEM_BYTES
from ..gemm.host import entries
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue, KernelStore
from ..gemm.host.launch import processors_of
from ..gemm.host.recorded import RecordedLaunch, Results, is_aligned, run_on
from ..rows.plan import Gpu
from .epilogue import ConvEpilogue
from .implicit import ImplicitConv
from .kernel import ConvKernel
from .prepare import QUAD, Prepare
from .shape import ConvShape
from .tiles import DEFAULTS, ConvPoint, make_point
from .window import WindowConv
from .windows import Windows

ARCH = "sm_90a"
_HERE = Path(__file__).resolve().parent
_ALIGNED = 16
_BULK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvSpec:
    """`shape`: the convolution; `x`, `weight` and `outputs` as the module's docstring has them, `operands` of the
    output's rank, each size its own or 1. `epilogue` reads `product` and the operands by name."""

    name: str
    shape: ConvShape
    x: ArraySpec
    weight: ArraySpec
    operands: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    epilogue: Function | None = None
    transposed: bool = False

    @property
    def read(self) -> tuple[ArraySpec, ...]:
        """What it is called with, in order."""
        return (self.x, self.weight, *self.operands)

    def walk(self, strides: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Strides of x, of an operand or of an output along (n, g, channel, three spatial dimensions), 0 where it has
        one element; of the weights, with n left out, the first is along nothing."""
        rank = len(self.x.shape)
        n, *rest = (0 if size == 1 else step for step, size in zip(strides, shape, strict=True))
        grouped = self.shape.groups > 1
        spatial = rank - 2 - grouped
        group, channel, *places = rest if grouped else (0, *rest)
        return (n, group, channel, *(0,) * (3 - spatial), *places)

    def weight_walk(self, strides: tuple[int, ...]) -> tuple[int, ...]:
        """Strides of the weights along (g, co, c, three taps)."""
        group, *rest = strides if self.shape.groups > 1 else (0, *strides)
        first, second, *taps = rest
        sides = (second, first) if self.transposed else (first, second)
        return (group, *sides, *(0,) * (3 - len(taps)), *taps)


class FusedConv:
    """A ConvSpec with its knobs. Calling it launches on torch's current stream; what it compiles is kept on disk."""

    def __init__(self, spec: ConvSpec, knobs: dict[str, Any], *, source: str = "", arch: str = ARCH) -> None:
        self.spec, self.arch = spec, arch
        self.knobs = dict(DEFAULTS)
        self.store = KernelStore(source=Path(source) if source else None)
        self._known: dict[Hashable, Launch] = {}
        self.configure(**knobs)

    @property
    def objects(self) -> set[Path]:
        """The files in which what it compiled is kept."""
        return self.store.objects

    def configure(self, **knobs: Any) -> None:
        """Replace settings. Raises ValueError, and replaces none, where they are unknown or don't fit together."""
        wanted = self.knobs | knobs
        scaled = self.spec.x.dtype == "f32"
        if scaled == (wanted["precision"] == "plain"):
            raise ValueError(f"precision {wanted['precision']!r} is not one of {self.spec.x.dtype}")
        self.point: ConvPoint = make_point(self.spec.shape, wanted)
        self.knobs.update(wanted)
        self._recorded = RecordedLaunch(self._steps, len(self.spec.read))

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The outputs, freshly allocated. Raises ValueError on what is not of the Spec's shapes and dtypes. On meta
        tensors it compiles what tensors of these strides need, and launches nothing."""
        made = self._recorded.call(*operands)
        return made if isinstance(made, tuple) else (made,)

    def _steps(self, *given: Tensor) -> Results:
        """The same, with nothing known of earlier calls."""
        spec, shape, p = self.spec, self.spec.shape, self.point
        for tensor, own in zip(given, spec.read, strict=True):
            if tuple(tensor.shape) != own.shape or tensor.dtype != DTYPES[own.dtype]:
                raise ValueError(f"{spec.name}: {own.dtype} {own.shape} is wanted, not {tensor.dtype} {tensor.shape}")
        x, w, *operands = given
        if not (_is_dense(x) and is_aligned(x)):
            x = x.clone(memory_format=torch.contiguous_format)
        kind = torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float16
        size = shape.groups * p.tiles * p.steps * p.weight_bytes // 2
        packed = torch.empty(size, dtype=kind, device=x.device)
        highest = torch.empty(shape.batch, dtype=torch.int32, device=x.device).zero_()
        factors = torch.empty(shape.groups * shape.columns, dtype=torch.float32, device=x.device)
        outs = [torch.empty(o.shape, dtype=DTYPES[o.dtype], device=x.device) for o in spec.outputs]
        launch = self._launch([t.stride() for t in (x, w, *operands)])
        ctas = min(self._work, processors_of(x))
        run_on(launch, x, w, packed, highest, factors, *outs, *operands, ctas, 0, 0)
        return tuple(outs) if len(outs) > 1 else outs[0]

    def _launch(self, strides: list[tuple[int, ...]]) -> Launch:
        skeletons = cache.contents(_HERE)
        facts = ("conv", self.arch, self.point, tuple(strides), skeletons)
        epilogue = Epilogue(function=self.spec.epilogue, names=tuple(o.name for o in self.spec.operands))
        return self.store.obtain(facts, epilogue, lambda: self.compile(strides))

    def compile(self, strides: list[tuple[int, ...]], options: str = "") -> Launch:
        """A launch of (x, w, packed, highest, factors, outputs .., operands .., CTAs, 0, 0) for tensors of these
        strides; no GPU needed."""
        spec, shape, p = self.spec, self.spec.shape, self.point
        kind = "bf16" if spec.x.dtype == "bf16" else "f16"
        size = shape.groups * p.tiles * p.steps * p.weight_bytes // 2
        read = [_fake(o.dtype, o.shape, walk) for o, walk in zip(spec.read, strides, strict=True)]
        own = [("f16" if kind == "f16" else "bf16", size, _BULK), ("i32", shape.batch, 4)]
        own += [("f32", shape.groups * shape.columns, 4)]
        between = [_fake(dtype, (count,), (1,), align) for dtype, count, align in own]
        outs = [_fake(o.dtype, o.shape, _contiguous(o.shape), _ALIGNED) for o in spec.outputs]
        tensors = (*read[:2], *between, *outs, *read[2:])
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        made: Launch = cute.compile(
            entries.product(len(tensors)), _Launched(spec, p, strides), *tensors, Int32(1), Int32(0), Int32(0), stream,
            options=f"--enable-tvm-ffi --gpu-arch {self.arch} {options}".rstrip(),
        )  # fmt: skip
        return made

    def prepare(self, device: Gpu) -> None:
        """Compile, or find on disk, what operands need that lie as the Spec says; no GPU needed."""
        self(*(torch.empty_strided(o.shape, o.strides or _contiguous(o.shape), dtype=DTYPES[o.dtype], device="meta")
               for o in self.spec.read))  # fmt: skip

    @property
    def _work(self) -> int:
        """Tiles of all groups."""
        shape, p = self.spec.shape, self.point
        rows = Windows(shape=shape, pixels=p.pixels).places if p.kernel == "window" else shape.pixels
        return -(-rows // p.pixels) * p.tiles * shape.groups

    def demand(self, processors: int) -> dict[str, int | str]:
        """What the kernel takes, operands lying as the Spec says (see `cuda.demand`)."""
        spec, p = self.spec, self.point
        return {
            "plan": hashlib.sha256(repr(p).encode()).hexdigest()[:16],
            "registers": max(p.registers),
            "local_bytes": 0,
            "shared_bytes": p.staged_bytes,
            "threads": p.threads,
            "ctas": min(self._work, processors),
            "in_flight_bytes": p.stages * p.pixel_bytes // p.threads,
            "moved_bytes": sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in (*spec.read, *spec.outputs)),
        }


class _Launched:
    """Both launches of a call, as `entries.product` calls them."""

    def __init__(self, spec: ConvSpec, point: ConvPoint, strides: list[tuple[int, ...]]) -> None:
        x, w, *operands = strides
        shape, dtype = spec.shape, spec.x.dtype
        self.outputs = len(spec.outputs)
        walks = [spec.walk(walk, o.shape) for walk, o in zip(operands, spec.operands, strict=True)]
        finish = ConvEpilogue(
            shape, [o.dtype for o in spec.outputs], function=spec.epilogue, names=[o.name for o in spec.operands],
            walks=walks,
        )  # fmt: skip
        of_x = spec.walk(x, spec.x.shape)
        kind: type[ConvKernel] = WindowConv if point.kernel == "window" else ImplicitConv
        self.conv = kind(shape, point, finish, dtype=dtype, walk=of_x)
        sample = prod(spec.x.shape[1:])
        self.prepare = Prepare(shape, point, dtype=dtype, walk=spec.weight_walk(w), sample=sample, apart=of_x[0])

    def __call__(self, tensors: tuple[Any, ...], ctas: Any, _one: Any, _other: Any, stream: Any) -> None:
        x, w, packed, highest, factors, *rest = tensors
        self.prepare.launch((x, w, packed, highest, factors), stream)
        outs, operands = rest[: self.outputs], rest[self.outputs :]
        self.conv.launch((x, packed, highest, factors), list(outs), list(operands), ctas, stream)


def _fake(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], align: int = 0) -> Any:
    # The stride of a mode of size 1 is anybody's guess.
    walk = tuple(cute.sym_int64() if n == 1 and align == 0 else s for n, s in zip(shape, strides, strict=True))
    return cute.runtime.make_fake_tensor(
        ELEMENT_TYPES[dtype], shape, stride=walk, assumed_align=align or ITEM_BYTES[dtype]
    )


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def _is_dense(x: Tensor) -> bool:
    """Whether each sample is one piece of memory, in whichever order of its dimensions."""
    inner = sorted((step, size) for step, size in zip(x.stride()[1:], x.shape[1:], strict=True) if size > 1)
    expected = 1
    for step, size in inner:
        if step != expected:
            return False
        expected *= size
    return x.shape[0] == 1 or (x.stride(0) >= expected and x.stride(0) % QUAD in (0, expected % QUAD))
