"""What a device says of itself while it is measured: clocks, power, heat, why it holds back, whether its memory fails.

NVML is asked through ctypes: no package need be installed for it, and it answers without a CUDA context."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ...facts.machine import DeviceState
from ...facts.problem import Target

# nvmlClocksEventReasons: what the hardware itself decides means that something is wrong with the machine.
_REASONS = {
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "heat",
    0x40: "hardware: heat", 0x80: "hardware: power brake",
}  # fmt: skip
_SICK = ("hardware slowdown", "hardware: heat", "hardware: power brake")
_SM_CLOCK, _MEMORY_CLOCK, _GPU_SENSOR, _UNCORRECTED, _SINCE_BOOT = 1, 2, 0, 1, 0


def device_state(target: Target) -> DeviceState:
    """The state now; what can't be had is 0 or empty."""
    return _of_gpu() if target == "cuda" else _of_cpu()


def sickness(before: DeviceState, after: DeviceState) -> str:
    """Why what was measured between the two can't count, or ""."""
    held_back = [reason for reason in after.throttled if reason in _SICK]
    if held_back:
        return f"the GPU is throttled by {', '.join(held_back)} ({after.temperature_c} C, {after.clock_mhz} MHz)"
    if after.memory_errors > before.memory_errors:
        return f"{after.memory_errors - before.memory_errors} uncorrected errors in the GPU's memory"
    return ""


def _of_cpu() -> DeviceState:
    mhz = 0.0
    with suppress(OSError, ValueError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        mhz = max((float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")), default=0.0)
    return DeviceState(clock_mhz=round(mhz), load=os.getloadavg()[0])


def _of_gpu() -> DeviceState:
    found = _nvml()
    if found is None:
        return DeviceState()
    nvml, device = found

    def value(kind: Any, name: str, *arguments: Any) -> int:
        answer = kind()
        function = getattr(nvml, name, None)
        failed = function is None or function(device, *map(ctypes.c_uint, arguments), ctypes.byref(answer))
        return 0 if failed else int(answer.value)

    reasons = value(ctypes.c_ulonglong, "nvmlDeviceGetCurrentClocksThrottleReasons")
    return DeviceState(
        clock_mhz=value(ctypes.c_uint, "nvmlDeviceGetClockInfo", _SM_CLOCK),
        memory_clock_mhz=value(ctypes.c_uint, "nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
        power_w=value(ctypes.c_uint, "nvmlDeviceGetPowerUsage") / 1000,
        temperature_c=value(ctypes.c_uint, "nvmlDeviceGetTemperature", _GPU_SENSOR),
        throttled=tuple(name for bit, name in _REASONS.items() if reasons & bit),
        memory_errors=value(ctypes.c_ulonglong, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _SINCE_BOOT),
    )


@cache
def _nvml() -> tuple[Any, Any] | None:
    """NVML and its handle of the first device that CUDA sees here; None where there is none."""
    try:
        cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    bus = ctypes.create_string_buffer(64)
    device = ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGetPCIBusId(bus, ctypes.c_int(len(bus)), ctypes.c_int(0)):
        return None
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(device)):
        return None
    return nvml, device
