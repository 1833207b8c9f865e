"""A Machine: what it is, what was measured on it, and the Floor that follows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import inf

from .problem import Work

LEAST_CALL_NS = 100.0  # Python alone takes longer to call a module


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What a device said of itself at one moment; 0 or empty where it says nothing. `throttled`: why its clocks are
    held back; `memory_errors`: uncorrected since it was started; `load`: processes that wanted a processor (CPU)."""

    clock_mhz: int = 0
    memory_clock_mhz: int = 0
    power_w: float = 0.0
    temperature_c: int = 0
    throttled: tuple[str, ...] = ()
    memory_errors: int = 0
    load: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Measured peaks of one device. Rates are bytes/s and flop/s; `cache_bytes` is its last-level cache, all of it that
    the processors in use reach; `cache_bytes_per_s` what they read and write within it, 0 where that is not known.
    `under_load`: others had the processors meanwhile, so that all rates may be too low."""

    target: str
    device: str  # e.g. "NVIDIA H200", or the CPU's model name and thread count
    driver: str
    torch: str
    dsl: str
    processors: int  # multiprocessors, or threads used
    cache_bytes: int
    copy_bytes_per_s: float
    matmul_flops_per_s: tuple[
        tuple[str, float], ...
    ]  # by dtype; "f32" is plain fp32, "f32_split" fp32 from tensor cores
    cache_bytes_per_s: float = 0.0
    under_load: bool = False
    architecture: str = ""  # what a compiler calls it, e.g. "sm_90a"; "" where that was not looked up

    @property
    def key(self) -> str:
        """Equal where times may be compared: device, driver and toolchain."""
        text = "|".join((self.target, self.device, self.driver, self.torch, self.dsl))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def rate(self, dtype: str) -> float:
        """The best measured matrix rate at this accuracy (fp32 may use the split rate), flop/s. Of eight bits twice
        that of 16, as tensor cores have it."""
        rates = dict(self.matmul_flops_per_s)
        if dtype == "float8_e4m3fn":
            return 2 * self.rate("f16")
        return max(rates.get(f"{dtype}_split", 0.0), rates.get(dtype, 0.0)) or max(rates.values())

    def floor_ns(self, work: Work) -> float:
        """max(bytes / bandwidth, flops / peak): the time that this device can't beat, ns."""
        return max(work.bytes_moved / self.copy_bytes_per_s, work.flops / self.rate(work.dtype)) * 1e9

    def impossible_ns(self, work: Work) -> float:
        """Below this no honest time can lie: even an empty call takes LEAST_CALL_NS; what fits in the last-level cache
        may never reach memory, but no faster than caches are; and rates are given 15% for measurement, those of caches
        and of products twice, since other code may come nearer to what the hardware can."""
        memory_s = max(work.bytes_moved - 2 * self.cache_bytes, 0) / self.copy_bytes_per_s
        fastest = max(self.cache_bytes_per_s, self.copy_bytes_per_s) if self.cache_bytes_per_s else inf
        cache_s = 0.5 * work.bytes_moved / fastest
        flops_s = 0.5 * work.flops / self.rate(work.dtype)
        return max(max(memory_s, cache_s, flops_s) / 1.15 * 1e9, LEAST_CALL_NS)
