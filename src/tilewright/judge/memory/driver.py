"""The few calls of the CUDA driver that cells need beside torch: IPC memory, events and device-wide sync.

They go straight to libcuda through ctypes, on torch's primary context: torch's own sharing keeps reference counts in
shared files, which a killed cell never gives back, and its event classes can be patched by the code under test.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
_OUT_OF_MEMORY = 2
_INVALID_CONTEXT = 201


class DriverError(RuntimeError):
    """A driver call failed; `code` is the CUresult."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.code = code


class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


@cache
def _library() -> ctypes.CDLL:
    _make_current()
    return ctypes.CDLL("libcuda.so.1")


def _make_current() -> None:
    """Make torch's primary context current on this thread."""
    torch.cuda.init()
    torch.zeros(1, device="cuda")


def call(name: str, *args: Any) -> None:
    library = _library()
    code = getattr(library, name)(*args)
    if code == _INVALID_CONTEXT:  # the first call on a new thread
        _make_current()
        code = getattr(library, name)(*args)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(text))
        if code == _OUT_OF_MEMORY:
            raise torch.OutOfMemoryError(f"{name}: {(text.value or b'').decode()}")
        raise DriverError(name, code, (text.value or b"unknown").decode())


def open_handle(data: bytes) -> int:
    if len(data) != HANDLE_BYTES:
        raise ValueError(f"an IPC handle has {HANDLE_BYTES} bytes, not {len(data)}")
    pointer = ctypes.c_uint64()
    handle = Handle.from_buffer_copy(data)
    call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return pointer.value


def close_handle(pointer: int) -> None:
    call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))


class _Block:
    """Foreign device memory in the form that torch adopts without a copy."""

    def __init__(self, pointer: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,), "typestr": "|u1", "data": (pointer, False), "strides": None, "version": 3,
        }  # fmt: skip


def as_tensor(pointer: int, size_bytes: int) -> Tensor:
    """A uint8 tensor over the block; the caller keeps the block alive."""
    return torch.as_tensor(_Block(pointer, size_bytes), device="cuda")


def synchronize() -> None:
    """Wait for all work of this process on the device, on every stream."""
    call("cuCtxSynchronize")


def release_kept_lines() -> None:
    """Make lines that a process asked the L2 cache to keep ordinary again: else they would outlast what evicts the
    others. A device that keeps no lines says that it can't, which is as good."""
    _library().cuCtxResetPersistingL2Cache()


class Events:
    """Timing events on the legacy default stream, created ahead of use."""

    def __init__(self, count: int) -> None:
        self._events = []
        self._record = _library().cuEventRecord
        for _ in range(count):
            event = ctypes.c_void_p()
            call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
            self._events.append(event)

    def record(self, index: int) -> None:
        code = self._record(self._events[index], None)
        if code:
            raise DriverError("cuEventRecord", code, "")

    def elapsed_ns(self, first: int, second: int) -> float:
        """ns between two recorded events; call after `synchronize`."""
        result = ctypes.c_float()
        call("cuEventElapsedTime", ctypes.byref(result), self._events[first], self._events[second])
        return result.value * 1e6

    def close(self) -> None:
        for event in self._events:
            call("cuEventDestroy_v2", event)
        self._events = []
