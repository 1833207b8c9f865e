"""A script for a child process: which CUDA devices the driver shows, one JSON line; standard library only.

It runs beside the parent because `cuInit` can't be undone and breaks processes that fork later.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_MAJOR, _MINOR, _MULTIPROCESSORS = 75, 76, 16  # CUdevice_attribute


def driver_version() -> str:
    """The kernel driver's version ("580.65.06") from NVML; empty where NVML is absent."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))):
        return ""
    return text.value.decode()


def cuda_devices() -> dict[str, Any]:
    """`devices` (name, capability, memory_bytes, multiprocessors each), `driver`, and `problem`: why there are none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"devices": [], "driver": "", "problem": "no NVIDIA driver (libcuda.so.1) found"}
    code = cuda.cuInit(0)
    count = ctypes.c_int()
    code = code or cuda.cuDeviceGetCount(ctypes.byref(count))
    if code or not count.value:
        reason = "the driver shows no device" if code in (0, 100) else f"the driver's cuInit returned error {code}"
        return {"devices": [], "driver": driver_version(), "problem": reason}
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    api = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return {
        "devices": [_device(cuda, i) for i in range(count.value)],
        "driver": f"{driver_version()} ({api})".strip(),
        "problem": "",
    }


def _device(cuda: Any, ordinal: int) -> dict[str, Any]:
    device, memory, value = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_int()
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)

    def attribute(which: int) -> int:
        cuda.cuDeviceGetAttribute(ctypes.byref(value), which, device)
        return value.value

    return {
        "name": name.value.decode(), "capability": [attribute(_MAJOR), attribute(_MINOR)], "memory_bytes": memory.value,
        "multiprocessors": attribute(_MULTIPROCESSORS),
    }  # fmt: skip


if __name__ == "__main__":
    json.dump(cuda_devices(), sys.stdout)
