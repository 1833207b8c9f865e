"""A Device: what kernels are made for. The one place from which numbers of a GPU or a CPU come."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .machine import Machine
from .problem import Target

RESERVED_SHARED_BYTES = 1 << 10  # of each resident CTA, by the system
_REGISTER_UNIT = 8  # a thread's registers are given out in multiples of this
MODEL, MEASURED = "MODEL", "measured"  # how the source of a number begins that is an estimate, or was measured by us


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Facts of one kind of processor. Bytes are bytes, rates are bytes/ns and flop/ns; of a CPU the fields of a
    multiprocessor are 0. `sources`: by field, where its number comes from; a source that begins with "measured" names
    a file of benchmarks/results, one that begins with "MODEL" is an estimate, any other is the vendor's."""

    target: Target
    name: str  # as the driver gives it, or the CPU's model name and thread count
    architecture: str  # what a compiler calls it, e.g. "sm_90a", "x86-64"; "" where that is not known
    processors: int  # multiprocessors, or threads used
    shared_bytes: int = 0  # of a multiprocessor
    cta_shared_bytes: int = 0  # of one CTA, at most
    registers: int = 0  # of 32 bits, of a multiprocessor
    threads: int = 0  # that a multiprocessor holds at most
    ctas: int = 0  # the same
    largest_cluster: int = 1  # CTAs; 1: there are no clusters, nor is there distributed shared memory
    cache_bytes: int  # the last-level cache
    copy_bytes_per_ns: float  # memory, read and written
    flops_per_ns: tuple[tuple[str, float], ...]  # of matrix products, by class; "f32" without tensor cores
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def capability(self) -> int:
        """The compute capability, 90 of sm_90a; 0 where the device is no GPU, or that is not known."""
        return int("".join(filter(str.isdigit, self.architecture))) if self.architecture.startswith("sm_") else 0

    def flops(self, kind: str) -> float:
        """The rate of a class of products, flop/ns; KeyError where the class is not known."""
        return dict(self.flops_per_ns)[kind]

    def resident_ctas(self, *, registers: int, threads: int, shared_bytes: int) -> int:
        """CTAs of a kernel (registers a thread, threads and shared memory a CTA) that a multiprocessor holds at once;
        0: it can't run."""
        given = -(-registers // _REGISTER_UNIT) * _REGISTER_UNIT
        if shared_bytes > self.cta_shared_bytes:
            return 0
        return min(
            self.ctas, self.threads // threads, self.registers // max(given * threads, 1),
            self.shared_bytes // (shared_bytes + RESERVED_SHARED_BYTES),
        )  # fmt: skip

    @property
    def plan_facts(self) -> dict[str, int | str]:
        """The fields of `kernels/cuda/rows/plan.py`'s Gpu, for a child process that compiles without one."""
        return {
            "arch": self.architecture, "processors": self.processors, "shared_bytes": self.shared_bytes,
            "threads": self.threads,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What all GPUs of one compute capability have in common: fields of a Device."""

    shared_bytes: int
    cta_shared_bytes: int
    threads: int
    ctas: int
    largest_cluster: int
    registers: int = 1 << 16

    def of(self, device: Device) -> Device:
        """The Device with these limits."""
        return replace(
            device, shared_bytes=self.shared_bytes, cta_shared_bytes=self.cta_shared_bytes, threads=self.threads,
            ctas=self.ctas, largest_cluster=self.largest_cluster, registers=self.registers,
        )  # fmt: skip


def is_measured(device: Device) -> bool:
    """Whether the rates of a description were measured by us."""
    return dict(device.sources).get("flops_per_ns", "").startswith(MEASURED)


def measured_device(machine: Machine) -> Device:
    """A machine's own facts, with nothing known of its multiprocessors: rates as they were measured on it."""
    return Device(
        target="cpu" if machine.target == "cpu" else "cuda", name=machine.device, architecture=machine.architecture,
        processors=machine.processors, cache_bytes=machine.cache_bytes,
        copy_bytes_per_ns=machine.copy_bytes_per_s * 1e-9,
        flops_per_ns=tuple((kind, rate * 1e-9) for kind, rate in machine.matmul_flops_per_s),
        sources=(("copy_bytes_per_ns", "measured on this machine"), ("flops_per_ns", "measured on this machine")),
    )  # fmt: skip
