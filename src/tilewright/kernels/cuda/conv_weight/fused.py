"""What a generated `fused_K.py` of a weight's gradient tells the skeleton, and how it is called: like any other fused
kernel.

    dw (A, B, *t) = the gradient of a convolution's weight, from dense (N, A, *o) and windowed (N, B, *i)

With groups dense is (N, G, A, *o), windowed (N, G, B, *i) and dw (G, A, B, *t). Operands may lie in any order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from cutlass import Int32, cute
from torch import Tensor

from ...ops import DTYPES
from ..common import cache
from ..common.math import ELEMENT_TYPES
from ..common.spec import ArraySpec
from ..common.views import ITEM_BYTES
from ..gemm.host import entries
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue, KernelStore
from ..gemm.host.launch import processors_of
from ..gemm.host.recorded import RecordedLaunch, Results, is_aligned, run_on
from ..rows.plan import Gpu
from .kernel import WeightKernel
from .magnitudes import Magnitudes
from .shape import Patches, WeightShape
from .split_sums import SplitSums
from .tiles import DEFAULTS, WeightPoint, make_point

ARCH = "sm_90a"
_HERE = Path(__file__).resolve().parent
_ALIGNED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpec:
    """See the module's docstring."""

    name: str
    shape: WeightShape
    dense: ArraySpec
    windowed: ArraySpec
    output: ArraySpec

    @property
    def read(self) -> tuple[ArraySpec, ArraySpec]:
        """What it is called with, in order."""
        return self.dense, self.windowed

    def walk(self, strides: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Strides of an operand along (sample, group, channel, three spatial dimensions), 0 where it has one
        element."""
        n, *rest = (0 if size == 1 else step for step, size in zip(strides, shape, strict=True))
        group, channel, *places = rest if self.shape.windowed.groups > 1 else (0, *rest)
        return (n, group, channel, *(0,) * (3 - len(places)), *places)


class FusedWeightGradient:
    """A WeightSpec with its knobs. Calling it launches on torch's current stream; what it compiles is kept on disk."""

    def __init__(self, spec: WeightSpec, knobs: dict[str, Any], *, source: str = "", arch: str = ARCH) -> None:
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
        if (self.spec.dense.dtype == "f32") == (wanted["precision"] == "plain"):
            raise ValueError(f"precision {wanted['precision']!r} is not one of {self.spec.dense.dtype}")
        self.point: WeightPoint = make_point(self.spec.shape, wanted)
        self.knobs.update(wanted)
        self._recorded = RecordedLaunch(self._steps, 2)

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The gradient, freshly allocated. Raises ValueError on what is not of the Spec's shapes and dtypes. On meta
        tensors it compiles what tensors of these strides need, and launches nothing."""
        made = self._recorded.call(*operands)
        return made if isinstance(made, tuple) else (made,)

    def _steps(self, *given: Tensor) -> Results:
        """The same, with nothing known of earlier calls."""
        spec = self.spec
        for tensor, own in zip(given, spec.read, strict=True):
            if tuple(tensor.shape) != own.shape or tensor.dtype != DTYPES[own.dtype]:
                raise ValueError(f"{spec.name}: {own.dtype} {own.shape} is wanted, not {tensor.dtype} {tensor.shape}")
        dense, windowed = (x if is_aligned(x) else x.clone() for x in given)
        splits, steps = self.point.cut(spec.shape, processors_of(dense))
        highest = torch.empty(self._channels, dtype=torch.int32, device=dense.device).zero_()
        results = torch.empty(splits * self._matrix, dtype=torch.float32, device=dense.device)
        out = torch.empty(spec.output.shape, dtype=DTYPES[spec.output.dtype], device=dense.device)
        launch = self._launch([dense.stride(), windowed.stride()])
        run_on(launch, dense, windowed, highest, results, out, splits, steps, 0)
        return out

    @property
    def _channels(self) -> int:
        """Of both operands."""
        s = self.spec.shape.windowed
        return s.groups * (s.channels + s.columns)

    @property
    def _matrix(self) -> int:
        """Sums of a split."""
        p = self.point
        return self.spec.shape.windowed.groups * p.rows * p.tiles[0] * p.columns * p.tiles[1]

    def _launch(self, strides: list[tuple[int, ...]]) -> Launch:
        facts = ("conv_weight", self.arch, self.point, self.spec, tuple(strides), cache.contents(_HERE))
        return self.store.obtain(facts, Epilogue(), lambda: self.compile(strides))

    def compile(self, strides: list[tuple[int, ...]], options: str = "") -> Launch:
        """A launch of (dense, windowed, highest, results, out, splits, steps of one, 0) for operands of these strides;
        no GPU needed."""
        read = [
            _fake(o.dtype, o.shape, tuple(cute.sym_int64() if n == 1 else s for n, s in zip(o.shape, own, strict=True)))
            for o, own in zip(self.spec.read, strides, strict=True)
        ]
        highest = _fake("i32", (self._channels,), (1,))
        results = _fake("f32", (cute.sym_int64(divisibility=4),), (1,))
        output = self.spec.output
        out = _fake(output.dtype, output.shape, _contiguous(output.shape))
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        made: Launch = cute.compile(
            entries.product(5), _Launched(self.spec, self.point, strides), *read, highest, results, out, Int32(1),
            Int32(1), Int32(0), stream, options=f"--enable-tvm-ffi --gpu-arch {self.arch} {options}".rstrip(),
        )  # fmt: skip
        return made

    def prepare(self, device: Gpu) -> None:
        """Compile, or find on disk, what operands need that lie as the Spec says; no GPU needed."""
        self(*(torch.empty_strided(o.shape, o.strides or _contiguous(o.shape), dtype=DTYPES[o.dtype], device="meta")
               for o in self.spec.read))  # fmt: skip

    def demand(self, processors: int) -> dict[str, int | str]:
        """What the kernel takes, operands lying as the Spec says (see `cuda.demand`)."""
        spec, p = self.spec, self.point
        splits, _ = p.cut(spec.shape, processors)
        return {
            "plan": hashlib.sha256(repr(p).encode()).hexdigest()[:16],
            "registers": max(p.registers),
            "local_bytes": 0,
            "shared_bytes": p.stages * p.stage_bytes,
            "threads": p.threads,
            "ctas": splits * p.tiles[0] * p.tiles[1] * spec.shape.windowed.groups,
            "in_flight_bytes": p.stages * p.stage_bytes // p.threads,
            "moved_bytes": sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in (*spec.read, spec.output)),
        }


class _Launched:
    """All launches of a call, as `entries.product` calls them."""

    def __init__(self, spec: WeightSpec, point: WeightPoint, strides: list[tuple[int, ...]]) -> None:
        dense, windowed = (spec.walk(own, o.shape) for own, o in zip(strides, spec.read, strict=True))
        s = spec.shape.windowed
        dtype = spec.dense.dtype
        self.looks: tuple[Magnitudes, ...] = ()
        if dtype == "f32":
            whole = replace(spec.shape.dense, channels=s.channels, image=s.image, out=s.image)
            self.looks = (
                Magnitudes(spec.shape.dense, dense, first=s.groups * s.channels), Magnitudes(whole, windowed, first=0)
            )  # fmt: skip
        self.kernel = WeightKernel(spec.shape, point, dtype=dtype, walks=(windowed, dense))
        self.sums = SplitSums(spec.shape, point)

    def __call__(self, tensors: tuple[Any, ...], splits: Any, steps: Any, _: Any, stream: Any) -> None:
        dense, windowed, highest, results, out = tensors
        for look, x in zip(self.looks, (dense, windowed), strict=False):
            look.launch(x, highest, stream)
        self.kernel.launch((windowed, dense, highest, results), splits, steps, stream)
        self.sums.launch(results, out, splits, stream)


def _fake(dtype: str, shape: tuple[Any, ...], strides: tuple[Any, ...]) -> Any:
    return cute.runtime.make_fake_tensor(ELEMENT_TYPES[dtype], shape, stride=strides, assumed_align=_ALIGNED)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


__all__ = ["FusedWeightGradient", "Patches", "WeightShape", "WeightSpec"]
