"""What a generated `fused_K.py` of a convolution tells the skeleton, and how it is called: like any other fused kernel.

    y (N, Co, *o) = epilogue(convolution(x (N, C, *i), w (Co, C, *t)), operands ..)

With groups x is (N, G, C, *i), w (G, Co, C, *t), y (N, G, Co, *o); a transposed convolution's w has C before Co. In
channels-last y is (N, *o, Co), of groups (N, *o, G, Co). x and w may lie in any order.
Weights are packed, and samples looked at for their largest, anew in every call: nothing derived from either outlives
it.
"""

from __future__ import annotations

import hashlib
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from cutlass import Int32, cute
from torch import Tensor

from ...ops import DTYPES
from ..common import cache
from ..common.math import ELEMENT_TYPES
from ..common.views import ITEM_BYTES
from ..gemm.host import entries
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue, KernelStore
from ..gemm.host.launch import processors_of
from ..gemm.host.recorded import RecordedLaunch, Results, is_aligned, run_on
from ..rows.plan import Gpu
from .epilogue import ConvEpilogue, EpilogueOperand
from .im2col import KERNELS as OF_IM2COL
from .im2col_host import Im2colConv
from .implicit import ImplicitConv
from .kernel import ConvKernel
from .moments import MomentsEpilogue
from .phases import phases
from .prepare import QUAD, Prepare
from .reduced import ChannelEpilogue, PlacesEpilogue, WindowEpilogue
from .reduction import unreduced
from .spec import ConvSpec
from .tiles import DEFAULTS, ConvPoint, make_points
from .window import WindowConv
from .windows import Windows

__all__ = ["ConvSpec", "FusedConv"]

ARCH = "sm_90a"
_HERE = Path(__file__).resolve().parent
_ALIGNED = 16
_BULK = 128
_REDUCED = {"channels": ChannelEpilogue, "window": WindowEpilogue, "places": PlacesEpilogue,
            "moments": MomentsEpilogue}  # fmt: skip


class FusedConv:
    """A ConvSpec with its knobs. Calling it launches on torch's current stream; what it compiles is kept on disk."""

    def __init__(self, spec: ConvSpec, knobs: dict[str, Any], *, source: str = "", arch: str = ARCH) -> None:
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
        scaled = self.spec.x.dtype == "f32"
        if scaled == (wanted["precision"] == "plain"):
            raise ValueError(f"precision {wanted['precision']!r} is not one of {self.spec.x.dtype}")
        im2col, own = wanted["kernel"] in OF_IM2COL, self.spec.reduction
        found = () if im2col else make_points(self.spec.shape, wanted)
        if own is not None and im2col:
            raise ValueError("an im2col product reduces nothing")
        many = len(self.spec.operands)
        why = own and unreduced(self.spec.shape, found, own.over, own.window, operands=many)
        if why is not None:
            raise ValueError(why)
        self.im2col = Im2colConv(self.spec, wanted, self.store, self.arch) if im2col else None
        self.points: tuple[ConvPoint, ...] = found
        self.knobs.update(wanted)
        self._recorded = RecordedLaunch(self._steps, len(self.spec.read))

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The outputs, freshly allocated. Raises ValueError on what is not of the Spec's shapes and dtypes. On meta
        tensors it compiles what tensors of these strides need, and launches nothing."""
        made = self._recorded.call(*operands)
        return made if isinstance(made, tuple) else (made,)

    def _steps(self, *given: Tensor) -> Results:
        """The same, with nothing known of earlier calls."""
        spec, shape = self.spec, self.spec.shape
        for tensor, own in zip(given, spec.read, strict=True):
            if tuple(tensor.shape) != own.shape or tensor.dtype != DTYPES[own.dtype]:
                raise ValueError(f"{spec.name}: {own.dtype} {own.shape} is wanted, not {tensor.dtype} {tensor.shape}")
        if self.im2col is not None:
            return self.im2col.steps(*given)
        x, w, *operands = given
        if not (_is_dense(x) and is_aligned(x)):
            x = x.clone(memory_format=torch.contiguous_format)
        if spec.channels_last:  # they are read by 16 bytes
            operands = [o if is_aligned(o) else o.clone() for o in operands]
        highest = torch.empty(shape.batch, dtype=torch.int32, device=x.device).zero_()
        scrap = [torch.empty(count, dtype=DTYPES[dtype], device=x.device) for dtype, count, _ in self._scrap()]
        outs = [torch.empty(o.shape, dtype=DTYPES[o.dtype], device=x.device) for o in spec.outputs]
        launch = self._launch([t.stride() for t in (x, w, *operands)])
        run_on(launch, x, w, highest, *scrap, *outs, *operands, processors_of(x), 0, 0)
        return tuple(outs) if len(outs) > 1 else outs[0]

    def _scrap(self) -> list[tuple[str, int, int]]:
        """Of each kernel packed weights and the channels' factors: type, elements, alignment."""
        shape, kind = self.spec.shape, "bf16" if self.spec.x.dtype == "bf16" else "f16"
        columns = shape.groups * shape.columns
        sizes = [shape.groups * p.tiles * p.steps * p.weight_bytes // 2 for p in self.points]
        return [own for size in sizes for own in ((kind, size, _BULK), ("f32", columns, _ALIGNED))]

    def _launch(self, strides: list[tuple[int, ...]]) -> Launch:
        facts = ("conv", self.arch, self.points, tuple(strides), cache.contents(_HERE))
        epilogue = Epilogue(function=self.spec.epilogue, names=tuple(o.name for o in self.spec.operands))
        return self.store.obtain(facts, epilogue, lambda: self.compile(strides))

    def compile(self, strides: list[tuple[int, ...]], options: str = "") -> Launch:
        """A launch of (x, w, highest, scrap .., outputs .., operands .., CTAs at most, 0, 0) for tensors of these
        strides; no GPU needed."""
        if self.im2col is not None:
            return self.im2col.compile([strides[0], *strides[2:]], options)
        spec = self.spec
        aligned = [0, 0, *(_ALIGNED if spec.channels_last else 0 for _ in spec.operands)]
        read = [
            _fake(o.dtype, o.shape, _any_where_single(o.shape, walk), align)
            for o, walk, align in zip(spec.read, strides, aligned, strict=True)
        ]
        own = [("i32", spec.shape.batch, 4), *self._scrap()]
        between = [_fake(dtype, (count,), (1,), align) for dtype, count, align in own]
        outs = [_fake(o.dtype, o.shape, _contiguous(o.shape), _ALIGNED) for o in spec.outputs]
        tensors = (*read[:2], *between, *outs, *read[2:])
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        made: Launch = cute.compile(
            entries.product(len(tensors)), _Launched(spec, self.points, strides), *tensors, Int32(1), Int32(0),
            Int32(0), stream, options=f"--enable-tvm-ffi --gpu-arch {self.arch} {options}".rstrip(),
        )  # fmt: skip
        return made

    def prepare(self, device: Gpu) -> None:
        """Compile, or find on disk, what operands need that lie as the Spec says; no GPU needed."""
        self(*(torch.empty_strided(o.shape, o.strides or _contiguous(o.shape), dtype=DTYPES[o.dtype], device="meta")
               for o in self.spec.read))  # fmt: skip

    def demand(self, processors: int) -> dict[str, int | str]:
        """What the kernel takes, operands lying as the Spec says (see `cuda.demand`)."""
        if self.im2col is not None:
            return self.im2col.demand(processors)
        spec, p = self.spec, max(self.points, key=lambda point: point.staged_bytes)
        return {
            "plan": hashlib.sha256(repr(self.points).encode()).hexdigest()[:16],
            "registers": max(p.registers),
            "local_bytes": 0,
            "shared_bytes": p.staged_bytes,
            "threads": p.threads,
            "ctas": processors,
            "in_flight_bytes": p.stages * p.pixel_bytes // p.threads,
            "moved_bytes": sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in (*spec.read, *spec.outputs)),
        }


class _Launched:
    """All launches of a call, two for each kernel, as `entries.product` calls them."""

    def __init__(self, spec: ConvSpec, points: tuple[ConvPoint, ...], strides: list[tuple[int, ...]]) -> None:
        x, w, *operands = strides
        self.outputs = len(spec.outputs)
        last = spec.channels_last
        read = [EpilogueOperand(o.name, o.dtype, spec.walk(own, o.shape, last=last), spec.each(o.shape))
                for own, o in zip(operands, spec.operands, strict=True)]  # fmt: skip
        of_x, of_w = spec.walk(x, spec.x.shape), spec.weight_walk(w)
        self.phases: list[tuple[Prepare, ConvKernel]] = []
        for phase, point in zip(phases(spec.shape, points[0].phases), points, strict=True):
            own = spec.reduction
            make = ConvEpilogue if own is None else partial(_REDUCED[own.over], reduction=own)
            finish = make(
                spec.shape, point, [o.dtype for o in spec.outputs], function=spec.epilogue, operands=read,
                first=phase.first, channels_last=last, parts=phase.parts,
            )  # fmt: skip
            kind: type[ConvKernel] = WindowConv if point.kernel == "window" else ImplicitConv
            windows = Windows(shape=phase.shape, pixels=point.pixels, parts=phase.parts)
            taps = (step * e for step, e in zip(of_w[3:], phase.every, strict=True))
            prepare = Prepare(
                spec.shape if phase.parts else phase.shape, point, dtype=spec.x.dtype, walk=(*of_w[:3], *taps),
                samples=(0 if self.phases else prod(spec.x.shape[1:]), of_x[0]),
                begin=sum(step * t for step, t in zip(of_w[3:], phase.tap, strict=True)), run=finish.run,
                windows=windows if point.kernel == "window" else None,
            )  # fmt: skip
            self.phases.append((prepare, kind(phase.shape, point, finish, dtype=spec.x.dtype, walk=of_x)))

    def __call__(self, tensors: tuple[Any, ...], ctas: Any, _one: Any, _other: Any, stream: Any) -> None:
        x, w, highest, *rest = tensors
        scrap, rest = rest[: 2 * len(self.phases)], rest[2 * len(self.phases) :]
        outs, operands = rest[: self.outputs], rest[self.outputs :]
        for number, (prepare, conv) in enumerate(self.phases):
            packed, factors = scrap[2 * number : 2 * number + 2]
            prepare.launch((x, w, packed, highest, factors), stream)
            conv.launch((x, packed, highest, factors), list(outs), list(operands), ctas, stream)


def _fake(dtype: str, shape: tuple[int, ...], strides: tuple[Any, ...], align: int = 0) -> Any:
    return cute.runtime.make_fake_tensor(
        ELEMENT_TYPES[dtype], shape, stride=strides, assumed_align=align or ITEM_BYTES[dtype]
    )


def _any_where_single(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, ...]:
    """The strides, any along a mode of size 1."""
    return tuple(cute.sym_int64() if n == 1 else step for n, step in zip(shape, strides, strict=True))


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
