"""What whoever writes kernels for a processor must know of it, in lines: instruction sets and caches, or a GPU's
limits."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...facts.device import Device

_PROC, _SYSTEM = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cache")
_EXTENSIONS = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "sve", "sve2", "bf16",
)  # fmt: skip
_VECTORS = (("avx512f", 64), ("avx2", 32), ("sse4_2", 16), ("asimd", 16))  # the widest first, in bytes
_KB = 1 << 10


def hardware(device: Device, *, cpuinfo: Path = _PROC, caches: Path = _SYSTEM) -> tuple[str, ...]:
    """Lines for a prompt; () where nothing is known. On a CPU they are read from procfs and sysfs."""
    return _of_a_cpu(cpuinfo, caches) if device.target == "cpu" else _of_a_gpu(device)


def _of_a_gpu(device: Device) -> tuple[str, ...]:
    if not device.shared_bytes:
        return ()
    return (
        f"each of {device.processors} multiprocessors ({device.architecture}): {device.shared_bytes // _KB} KiB of "
        f"shared memory, at most {device.cta_shared_bytes // _KB} a CTA; {device.registers} registers of 32 bits; "
        f"{device.threads} threads, {device.ctas} CTAs",
        f"L2 cache: {device.cache_bytes / (_KB * _KB):.4g} MiB; "
        + (f"clusters of up to {device.largest_cluster} CTAs" if device.largest_cluster > 1 else "no clusters"),
    )


def _of_a_cpu(cpuinfo: Path, caches: Path) -> tuple[str, ...]:
    found = set(_flags(cpuinfo))
    there = [name for name in _EXTENSIONS if name in found]
    width = next((size for name, size in _VECTORS if name in found), 0)
    lines = [f"instruction sets: {', '.join(there)}; vectors of {width} bytes"] if width else []
    levels = [text for index in sorted(caches.glob("index*")) if (text := _cache(index))]
    return (*lines, *([f"caches of one core: {', '.join(levels)}"] if levels else ()))


def _flags(cpuinfo: Path) -> list[str]:
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, values = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return values.split()
    return []


def _cache(index: Path) -> str:
    """Such as "L1 48 KiB data"; "" for one that holds instructions alone, or can't be read."""
    try:
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
    except OSError:
        return ""
    return "" if kind == "Instruction" else f"L{level} {size.replace('K', ' KiB')}{' data' if kind == 'Data' else ''}"
