"""Arenas as a process sees them that maps them: how tensors lie in shared memory that the judge owns
(judge.memory.arena).

A tensor's spec keeps its strides, and dimensions of stride 0 take no space.
"""

from __future__ import annotations

import base64
import ctypes
import mmap
import os
import warnings

import torch
from torch import Tensor

from ...facts.tensor import TensorSpec
from ..wire.calls import MapArena
from ..wire.parts import TensorRef
from . import driver

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
    "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip
_NAMES = {v: k for k, v in DTYPES.items()}
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_size_t
_mmap.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED = 0x10
_LAID = mmap.MAP_SHARED | _MAP_FIXED | mmap.MAP_POPULATE  # tables of pages are made at once, and no page is read
_clone, _copy = torch.Tensor.clone, torch.Tensor.copy_  # bound before any code under test is loaded


def dtype_name(dtype: torch.dtype) -> str:
    """The name in facts; other types keep torch's own name ("float8_e4m3fn")."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    found = DTYPES.get(name) or getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


def spec_of(tensor: Tensor) -> TensorSpec:
    """The tensor's spec; strides that overlap in other ways than by stride 0 are replaced by contiguous ones."""
    shape = tuple(tensor.shape)
    spec = TensorSpec(shape=shape, stride=tuple(tensor.stride()), dtype=dtype_name(tensor.dtype))
    return spec if _distinct(spec) else contiguous(shape, spec.dtype)


def contiguous(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    strides: list[int] = []
    size = 1
    for extent in reversed(shape):
        strides.insert(0, size)
        size *= max(extent, 1)
    return TensorSpec(shape=shape, stride=tuple(strides), dtype=dtype)


def overlaps(tensor: Tensor) -> bool:
    """Whether several elements of a tensor share memory, as after `expand`."""
    if tensor.numel() == 0:
        return False
    spec = TensorSpec(shape=tuple(tensor.shape), stride=tuple(tensor.stride()), dtype="")
    return not _distinct(spec) or any(s == 0 and e > 1 for s, e in zip(spec.stride, spec.shape, strict=True))


def _distinct(spec: TensorSpec) -> bool:
    """Whether no two positions share memory, dimensions of stride 0 apart."""
    reach = 0
    for stride, extent in sorted((s, e) for s, e in zip(spec.stride, spec.shape, strict=True) if e > 1 and s != 0):
        if stride <= reach:
            return False
        reach += stride * (extent - 1)
    return True


def span_bytes(spec: TensorSpec) -> int:
    """Bytes from the first to the last element."""
    if 0 in spec.shape:
        return 0
    elements = 1 + sum((e - 1) * s for e, s in zip(spec.shape, spec.stride, strict=True))
    return elements * dtype_of(spec.dtype).itemsize


class Mapped:
    """An arena as one process sees it: `data`, a tensor of all its bytes."""

    def __init__(self, name: str, data: Tensor) -> None:
        self.name = name
        self.data = data

    def bytes_at(self, offset: int, size: int) -> Tensor:
        if offset < 0 or size < 0 or offset + size > self.data.numel():
            raise ValueError(f"{size} bytes at {offset} do not lie in arena {self.name!r} of {self.data.numel()}")
        return self.data[offset : offset + size]

    def tensor(self, ref: TensorRef) -> Tensor:
        """A view of the arena with the ref's shape, strides and dtype."""
        dtype = dtype_of(ref.spec.dtype)
        if 0 in ref.spec.shape:
            return torch.empty(ref.spec.shape, dtype=dtype, device=self.data.device)
        flat = self.bytes_at(ref.offset, span_bytes(ref.spec)).view(dtype)
        return flat.as_strided(ref.spec.shape, ref.spec.stride)

    def write(self, ref: TensorRef, value: Tensor) -> None:
        """Copy `value`, of the ref's shape, into place."""
        if tuple(value.shape) != ref.spec.shape:
            raise ValueError(f"shape {tuple(value.shape)} where {ref.spec.shape} was announced")
        place, value = _each_once(self.tensor(ref), value)
        place.copy_(value)

    def close(self) -> None:
        self.data = torch.empty(0, dtype=torch.uint8)


class Opened(Mapped):
    """A cell's side of an arena."""

    def lay(self, descriptor: int, offset: int, size_bytes: int) -> None:
        """Lay the file's memory over whole pages of the arena: other contents at the same addresses, of which nothing
        is read yet. Takes the descriptor."""
        try:
            self.bytes_at(offset, size_bytes)
            place = self.data.data_ptr() + offset
            if _mmap(place, size_bytes, _READ_WRITE, _LAID, descriptor, 0) != place:
                raise OSError(ctypes.get_errno(), "contents could not be laid over an arena")
        finally:
            os.close(descriptor)

    def __init__(self, message: MapArena, descriptor: int) -> None:
        self._pointer = 0
        if message.device == "cuda":
            self._pointer = driver.open_handle(base64.b64decode(message.handle))
            super().__init__(message.name, driver.as_tensor(self._pointer, message.size_bytes))
        else:
            mapped = map_sealed if message.sealed else map_file
            super().__init__(message.name, mapped(descriptor, message.size_bytes))
            os.close(descriptor)

    def close(self) -> None:
        super().close()
        if self._pointer:
            driver.synchronize()
            driver.close_handle(self._pointer)
            self._pointer = 0


def map_file(descriptor: int, size_bytes: int) -> Tensor:
    memory = mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def map_sealed(descriptor: int, size_bytes: int) -> Tensor:
    """The bytes of a file that is sealed against writing: pages that are let go come back as they were."""
    memory = mmap.mmap(descriptor, size_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch knows no tensors that can't be written to
        return torch.frombuffer(memory, dtype=torch.uint8)


def _each_once(place: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Both without the repetitions of `place`'s dimensions of stride 0."""
    for dim, stride in enumerate(place.stride()):
        if stride == 0 and place.shape[dim] > 1:
            place, other = place.narrow(dim, 0, 1), other.narrow(dim, 0, 1)
    return place, other


def exchange(one: Tensor, other: Tensor) -> None:
    """Swap the contents of two places of one shape and stride that do not overlap."""
    one, other = _each_once(one, other)
    kept = _clone(one)
    _copy(one, other)
    _copy(other, kept)
