"""How the gradient of a convolution's weight is called: like any other fused kernel.

    dw (A, B, *t) = the gradient of a convolution's weight, from dense (N, A, *o) and windowed (N, B, *i)

With groups dense is (N, G, A, *o), windowed (N, G, B, *i) and dw (G, A, B, *t). Operands may lie in any order.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

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
from .shape import WeightShape

ARCH = "sm_90a"
_HERE = Path(__file__).resolve().parent
_ALIGNED = 16
Strides = tuple[int, ...]
Axes = tuple[int | None, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpec:
    """See the module's docstring. `axes`: where others than those dimensions are given, which of each operand's, dense
    and windowed, are sample, group, channel and the three spatial ones (None: it has none). `windowed_first`: it is
    called with the windowed operand, then the dense one."""

    name: str
    shape: WeightShape
    dense: ArraySpec
    windowed: ArraySpec
    output: ArraySpec
    axes: tuple[Axes, Axes] | None = None
    windowed_first: bool = False

    @property
    def read(self) -> tuple[ArraySpec, ArraySpec]:
        """What it is called with, in order."""
        return self.ordered((self.dense, self.windowed))

    def ordered(self, two: tuple[T, T]) -> tuple[T, T]:
        """What is dense and what is windowed as they are called with, or the other way round."""
        return (two[1], two[0]) if self.windowed_first else two

    def walks(self, strides: Sequence[Strides]) -> tuple[Strides, Strides]:
        """Strides, given as they are called with, of the windowed operand and of the dense one along (sample, group,
        channel, three spatial dimensions), 0 where there is one element."""
        dense, windowed = self.ordered((strides[0], strides[1]))
        grouped, rank = self.shape.windowed.groups > 1, len(self.dense.shape)
        places = range(2 + grouped, rank)
        usual: Axes = (0, *((1, 2) if grouped else (None, 1)), *(None,) * (3 - len(places)), *places)
        both = self.axes or (usual, usual)
        return _walk(windowed, self.windowed.shape, both[1]), _walk(dense, self.dense.shape, both[0])


def _walk(strides: Strides, shape: tuple[int, ...], axes: Axes) -> Strides:
    return tuple(0 if d is None or shape[d] == 1 else strides[d] for d in axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrap:
    """What a launch needs beside operands and result: int32 zeros, fp32 sums, and two numbers that it is told."""

    zeros: int
    sums: int
    numbers: tuple[int, int]


class WeightHost(ABC):
    """A WeightSpec with its knobs. Calling it launches on torch's current stream; what it compiles is kept on disk."""

    defaults: dict[str, Any]

    def __init__(self, spec: WeightSpec, knobs: dict[str, Any], *, source: str = "", arch: str = ARCH) -> None:
        self.spec, self.arch = spec, arch
        self.knobs = dict(self.defaults)
        self.store = KernelStore(source=Path(source) if source else None)
        self.configure(**knobs)

    @abstractmethod
    def _settle(self, knobs: dict[str, Any]) -> Any:
        """What these settings come to. Raises ValueError where they are unknown or don't fit together."""

    @abstractmethod
    def _scrap(self, processors: int) -> Scrap: ...

    @abstractmethod
    def launched(self, strides: list[Strides]) -> Callable[..., None]:
        """All launches of a call, as `entries.product` calls them, of (both operands, zeros, sums, out)."""

    @abstractmethod
    def demand(self, processors: int) -> dict[str, int | str]:
        """What the kernel takes, operands lying as the Spec says (see `cuda.demand`)."""

    @property
    def objects(self) -> set[Path]:
        """The files in which what it compiled is kept."""
        return self.store.objects

    def configure(self, **knobs: Any) -> None:
        """Replace settings. Raises ValueError, and replaces none, where they are unknown or don't fit together."""
        wanted = self.knobs | knobs
        self.point = self._settle(wanted)
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
        one, other = (x if is_aligned(x) else x.clone() for x in given)
        need, device = self._scrap(processors_of(one)), one.device
        zeros = torch.empty(need.zeros, dtype=torch.int32, device=device).zero_()
        sums = torch.empty(need.sums, dtype=torch.float32, device=device)
        out = torch.empty(spec.output.shape, dtype=DTYPES[spec.output.dtype], device=device)
        launch = self._launch([one.stride(), other.stride()])
        run_on(launch, one, other, zeros, sums, out, *need.numbers, 0)
        return out

    def _launch(self, strides: list[Strides]) -> Launch:
        facts = (type(self).__name__, self.arch, self.point, self.spec, tuple(strides), cache.contents(_HERE))
        return self.store.obtain(facts, Epilogue(), lambda: self.compile(strides))

    def compile(self, strides: list[Strides], options: str = "") -> Launch:
        """A launch of (both operands, zeros, sums, out, two numbers, 0) for operands of these strides; no GPU
        needed."""
        read = [
            _fake(o.dtype, o.shape, tuple(cute.sym_int64() if n == 1 else s for n, s in zip(o.shape, own, strict=True)))
            for o, own in zip(self.spec.read, strides, strict=True)
        ]
        between = [_fake(dtype, (cute.sym_int64(),), (1,)) for dtype in ("i32", "f32")]
        output = self.spec.output
        out = _fake(output.dtype, output.shape, _contiguous(output.shape))
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        made: Launch = cute.compile(
            entries.product(5), self.launched(strides), *read, *between, out, Int32(1), Int32(1), Int32(0), stream,
            options=f"--enable-tvm-ffi --gpu-arch {self.arch} {options}".rstrip(),
        )  # fmt: skip
        return made

    def prepare(self, device: Gpu) -> None:
        """Compile, or find on disk, what operands need that lie as the Spec says; no GPU needed."""
        self(*(torch.empty_strided(o.shape, o.strides or _contiguous(o.shape), dtype=DTYPES[o.dtype], device="meta")
               for o in self.spec.read))  # fmt: skip


def demand_of(spec: WeightSpec, point: object) -> dict[str, int | str]:
    """Of `WeightHost.demand` what is the same for all of them."""
    return {
        "plan": hashlib.sha256(repr(point).encode()).hexdigest()[:16], "local_bytes": 0,
        "moved_bytes": sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in (*spec.read, spec.output)),
    }  # fmt: skip


def _fake(dtype: str, shape: tuple[Any, ...], strides: tuple[Any, ...]) -> Any:
    return cute.runtime.make_fake_tensor(ELEMENT_TYPES[dtype], shape, stride=strides, assumed_align=_ALIGNED)


def _contiguous(shape: tuple[int, ...]) -> Strides:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
