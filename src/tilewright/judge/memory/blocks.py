"""Blocks of device memory that the judge allocates and hands to cells by an IPC handle."""

from __future__ import annotations

import ctypes

from .driver import Handle, call, synchronize


def allocate(size_bytes: int) -> int:
    """A device block of its own, 512-byte aligned; raises torch.OutOfMemoryError."""
    pointer = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
    return pointer.value


def free(pointer: int) -> None:
    synchronize()
    call("cuMemFree_v2", ctypes.c_uint64(pointer))


def export(pointer: int) -> bytes:
    handle = Handle()
    call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
    return bytes(handle.reserved)
