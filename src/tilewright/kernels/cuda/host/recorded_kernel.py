"""What kernels beside rows and products have in common on the host: a Spec with knobs, compiled once for each layout of
the operands and launched as it was recorded. A kind of kernel says how it launches, and what it is compiled from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from cutlass import Int32, cute
from torch import Tensor

from ...ops import DTYPES
from ..common import cache
from ..common.math import ELEMENT_TYPES
from ..common.spec import ArraySpec
from ..common.views import ITEM_BYTES, contiguous
from ..gemm.host import entries
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import KernelStore
from ..gemm.host.recorded import RecordedLaunch, Results
from ..rows.plan import Gpu

ARCH = "sm_90a"
_HERE = Path(__file__).resolve().parent
Strides = tuple[int, ...]


class KernelSpec(Protocol):
    """What a call reads, in order, and the outputs that it gives."""

    @property
    def name(self) -> str: ...

    @property
    def read(self) -> tuple[ArraySpec, ...]: ...

    @property
    def results(self) -> tuple[ArraySpec, ...]: ...


S = TypeVar("S", bound=KernelSpec)


class RecordedKernel(ABC, Generic[S]):
    """A Spec with its knobs. Calling it launches on torch's current stream; what it compiles is kept on disk, where
    `source`, the file that holds the Spec, is known."""

    defaults: ClassVar[Mapping[str, Any]]

    def __init__(self, spec: S, knobs: dict[str, Any], *, source: str = "", arch: str = ARCH) -> None:
        self.spec, self.arch = spec, arch
        self.knobs = dict(self.defaults)
        self.store = KernelStore(source=Path(source) if source else None)
        self.configure(**knobs)

    @property
    def objects(self) -> set[Path]:
        """The files in which what it compiled is kept."""
        return self.store.objects

    def configure(self, **knobs: Any) -> None:
        """Replace settings. Raises ValueError, and replaces none, where they are unknown or don't fit together."""
        wanted = self.knobs | knobs
        self._settle(wanted)
        self.knobs.update(wanted)
        self._recorded = RecordedLaunch(self._steps, len(self.spec.read))

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The outputs, freshly allocated. Raises ValueError on what is not of the Spec's shapes and dtypes. On meta
        tensors it compiles what tensors of these strides need, and launches nothing."""
        made = self._recorded.call(*operands)
        return made if isinstance(made, tuple) else (made,)

    def prepare(self, device: Gpu) -> None:
        """Compile, or find on disk, what operands need that lie as the Spec says; no GPU needed."""
        self(*(torch.empty_strided(o.shape, o.strides or contiguous(o.shape), dtype=DTYPES[o.dtype], device="meta")
               for o in self.spec.read))  # fmt: skip

    @abstractmethod
    def compile(self, strides: list[Strides], options: str = "") -> Launch:
        """What launches the kernel on tensors of these strides, one of each that the Spec reads; no GPU needed."""

    @abstractmethod
    def demand(self, processors: int) -> dict[str, int | str]:
        """What the kernel takes, operands lying as the Spec says (see `cuda.demand`)."""

    @abstractmethod
    def _settle(self, knobs: dict[str, Any]) -> None:
        """Take over all settings. Raises ValueError, and takes over none, as `configure` does."""

    @abstractmethod
    def _run(self, outs: list[Tensor], *operands: Tensor) -> None:
        """Launch on operands of the Spec's shapes and dtypes, which lie in any way."""

    def _steps(self, *given: Tensor) -> Results:
        """The call, with nothing known of earlier ones."""
        for tensor, own in zip(given, self.spec.read, strict=True):
            if tuple(tensor.shape) != own.shape or tensor.dtype != DTYPES[own.dtype]:
                found = f"{tensor.dtype} {tuple(tensor.shape)}"
                raise ValueError(f"{self.spec.name}: {own.dtype} {own.shape} is wanted, not {found}")
        outs = [torch.empty(o.shape, dtype=DTYPES[o.dtype], device=given[0].device) for o in self.spec.results]
        self._run(outs, *given)
        return tuple(outs) if len(outs) > 1 else outs[0]


def settings(kind: str, arch: str, point: Hashable, strides: Sequence[Strides], folder: Path) -> tuple[Any, ...]:
    """Under what a KernelStore keeps a kernel of a kind; `folder`: its skeleton's."""
    return (kind, arch, point, tuple(strides), cache.contents(folder), cache.contents(_HERE))


def compiled(kernel: Any, tensors: Sequence[Any], numbers: Sequence[int] = (), *, arch: str, options: str) -> Launch:
    """A launch of the tensors and of as many numbers, none or three: kernel(tensors, numbers .., stream)."""
    entry = entries.product if numbers else entries.combine
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    made: Launch = cute.compile(
        entry(len(tensors)), kernel, *tensors, *map(Int32, numbers), stream,
        options=f"--enable-tvm-ffi --gpu-arch {arch} {options}".rstrip(),
    )  # fmt: skip
    return made


def fake(dtype: str, shape: tuple[int, ...], strides: tuple[Any, ...], align: int = 0) -> Any:
    """A tensor to compile with, which begins at a multiple of `align` bytes, or of its elements'."""
    return cute.runtime.make_fake_tensor(
        ELEMENT_TYPES[dtype], shape, stride=strides, assumed_align=align or ITEM_BYTES[dtype]
    )


def any_where_single(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, ...]:
    """The strides, any along a mode of size 1."""
    return tuple(cute.sym_int64() if n == 1 else step for n, step in zip(shape, strides, strict=True))


def demanded(spec: KernelSpec, plan: object, *, registers: int, shared_bytes: int, threads: int, ctas: int,
             in_flight_bytes: int) -> dict[str, int | str]:  # fmt: skip
    """The demand of a kernel that reads and writes all once; equal plans of a Spec are one kernel."""
    return {
        "plan": hashlib.sha256(repr(plan).encode()).hexdigest()[:16],
        "registers": registers,
        "local_bytes": 0,
        "shared_bytes": shared_bytes,
        "threads": threads,
        "ctas": ctas,
        "in_flight_bytes": in_flight_bytes,
        "moved_bytes": sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in (*spec.read, *spec.results)),
    }
