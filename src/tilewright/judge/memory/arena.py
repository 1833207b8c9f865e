"""Arenas: shared memory that the judge owns and cells map (judge.memory.mapped).

On the CPU an arena is a sealed memfd (a cell can't shrink it under the judge); on a GPU it is one cuMemAlloc block
whose IPC handle is opened in the cell, so that gigabytes pass between processes without touching the host. Tensors
are placed by a Layout.
"""

from __future__ import annotations

import base64
import fcntl
import mmap
import os
from dataclasses import dataclass

from ...facts.tensor import TensorSpec
from ..wire.calls import MapArena
from ..wire.parts import TensorRef
from . import blocks, driver
from .mapped import Mapped, dtype_of, map_file, span_bytes

_CUDA_GRAIN = 2 << 20  # smaller blocks would share a page, and so an IPC handle, with other data of the judge
ALIGNMENT = 512  # bytes: what torch's CUDA allocator gives, so that no kernel sees a worse alignment than usual
PAGE_BYTES = mmap.PAGESIZE


def bytes_of(spec: TensorSpec) -> int:
    """Bytes of the elements that the spec names, each counted once."""
    size = dtype_of(spec.dtype).itemsize
    for extent, stride in zip(spec.shape, spec.stride, strict=True):
        size *= extent if stride != 0 or extent == 0 else 1
    return size


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Layout:
    """Where several tensors lie relative to one base."""

    specs: tuple[TensorSpec, ...]

    @property
    def size_bytes(self) -> int:
        return sum(aligned(span_bytes(s)) for s in self.specs)

    def at(self, arena: str, base: int) -> tuple[TensorRef, ...]:
        refs: list[TensorRef] = []
        for spec in self.specs:
            refs.append(TensorRef(arena=arena, offset=base, spec=spec))
            base += aligned(span_bytes(spec))
        return tuple(refs)


class Arena(Mapped):
    """The owner's side. Close it after every cell that maps it has unmapped it or is dead."""

    def __init__(self, name: str, size_bytes: int, device: str) -> None:
        self.size_bytes = max(aligned(size_bytes), 4096)
        self.device = device
        self._pointer = 0
        self.descriptor = -1
        if device == "cuda":
            self.size_bytes = -(-self.size_bytes // _CUDA_GRAIN) * _CUDA_GRAIN
            self._pointer = blocks.allocate(self.size_bytes)
            self._handle = base64.b64encode(blocks.export(self._pointer)).decode()
            super().__init__(name, driver.as_tensor(self._pointer, self.size_bytes))
        else:
            self.descriptor = os.memfd_create(f"tilewright-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.descriptor, self.size_bytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._handle = ""
            super().__init__(name, map_file(self.descriptor, self.size_bytes))

    def message(self) -> MapArena:
        return MapArena(name=self.name, size_bytes=self.size_bytes, device=self.device, handle=self._handle)

    def close(self) -> None:
        super().close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        if self._pointer:
            blocks.free(self._pointer)
            self._pointer = 0
