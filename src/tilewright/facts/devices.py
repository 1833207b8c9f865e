"""The table of known GPUs: to add one, add its description here, and the limits of its compute capability if new.

Vendor's numbers are dense rates without sparsity, of products summed in fp32, and bandwidths as the data sheets give
them, so no program reaches them. What was measured (rates of copies and of cuBLAS) is lower and is preferred.
"""

from __future__ import annotations

from dataclasses import replace

from .device import MODEL, Capability, Device, is_measured, measured_device
from .machine import Machine

_KB, _MB = 1 << 10, 1 << 20
# By architecture: CUDA C++ Programming Guide, technical specifications per compute capability. A cluster of 16 CTAs
# needs `cudaFuncAttributeNonPortableClusterSizeAllowed`; 8 are portable.
_HOPPER = Capability(
    shared_bytes=228 * _KB, cta_shared_bytes=227 * _KB, threads=2048, ctas=32, largest_cluster=16
)  # fmt: skip
CAPABILITIES = {
    "sm_80": Capability(shared_bytes=164 * _KB, cta_shared_bytes=163 * _KB, threads=2048, ctas=32, largest_cluster=1),
    "sm_86": Capability(shared_bytes=100 * _KB, cta_shared_bytes=99 * _KB, threads=1536, ctas=16, largest_cluster=1),
    "sm_89": Capability(shared_bytes=100 * _KB, cta_shared_bytes=99 * _KB, threads=1536, ctas=24, largest_cluster=1),
    "sm_90a": _HOPPER, "sm_100a": _HOPPER, "sm_103a": _HOPPER,
    "sm_120a": Capability(shared_bytes=100 * _KB, cta_shared_bytes=99 * _KB, threads=1536, ctas=24, largest_cluster=8),
}  # fmt: skip
_LEAST = CAPABILITIES["sm_86"]  # for a GPU of which nothing is known


def _gpu(
    name: str, architecture: str, *, processors: int, cache_mb: int, copy: float, flops: dict[str, float],
    sheet: str, measured: str = "",
) -> Device:  # fmt: skip
    """`copy` in bytes/ns (GB/s), `flops` in Tflop/s by class. `sheet` is the source of all that is not `measured`,
    which names the file of the rates where there is one."""
    rates = f"measured: benchmarks/results/{measured}" if measured else sheet
    device = Device(
        target="cuda", name=name, architecture=architecture, processors=processors, cache_bytes=cache_mb * _MB,
        copy_bytes_per_ns=copy, flops_per_ns=tuple((kind, rate * 1e3) for kind, rate in sorted(flops.items())),
        sources=(("processors", sheet), ("cache_bytes", sheet), ("copy_bytes_per_ns", rates), ("flops_per_ns", rates),
                 ("shared_bytes", "CUDA C++ Programming Guide, compute capabilities")),
    )  # fmt: skip
    return CAPABILITIES[architecture].of(device)


DEVICES = {
    "a100": _gpu(
        "NVIDIA A100-SXM4-80GB", "sm_80", processors=108, cache_mb=40, copy=2039.0,
        flops={"f16": 312.0, "bf16": 312.0, "tf32": 156.0, "f32": 19.5, "f64": 19.5},
        sheet="NVIDIA A100 Tensor Core GPU data sheet; architecture white paper",
    ),
    "l40s": _gpu(
        "NVIDIA L40S", "sm_89", processors=142, cache_mb=96, copy=864.0,
        flops={"f16": 362.0, "bf16": 362.0, "tf32": 183.0, "f32": 91.6, "f8": 733.0},
        sheet="NVIDIA L40S data sheet",
    ),
    "rtx4090": _gpu(
        "NVIDIA GeForce RTX 4090", "sm_89", processors=128, cache_mb=72, copy=1008.0,
        flops={"f16": 165.2, "bf16": 165.2, "tf32": 82.6, "f32": 82.6, "f8": 330.3},
        sheet="NVIDIA Ada GPU architecture white paper, appendix A",
    ),
    "h100": _gpu(
        "NVIDIA H100 80GB HBM3", "sm_90a", processors=132, cache_mb=50, copy=2996.0,
        flops={"f16": 766.0, "bf16": 795.0, "tf32": 408.0, "f32": 51.7, "f32_split": 255.0, "f64": 64.4},
        sheet="NVIDIA H100 Tensor Core GPU data sheet (SXM)", measured="h100/false-positives.json",
    ),
    "h200": _gpu(
        "NVIDIA H200", "sm_90a", processors=132, cache_mb=60, copy=4240.0,
        flops={"f16": 776.0, "bf16": 803.0, "tf32": 401.0, "f32": 51.5, "f32_split": 259.0, "f64": 62.7},
        sheet="NVIDIA H200 Tensor Core GPU data sheet (SXM)", measured="h200/kernelbench-products.json",
    ),
    "b200": _gpu(
        "NVIDIA B200", "sm_100a", processors=148, cache_mb=126, copy=8000.0,
        flops={"f16": 2250.0, "bf16": 2250.0, "tf32": 1125.0, "f32": 75.0, "f8": 4500.0},
        sheet=f"{MODEL}: NVIDIA HGX B200 data sheet, its eighth; L2 and multiprocessors as reported, not queried by us",
    ),
    "rtx5090": _gpu(
        "NVIDIA GeForce RTX 5090", "sm_120a", processors=170, cache_mb=96, copy=1792.0,
        flops={"f16": 209.5, "bf16": 209.5, "tf32": 104.8, "f32": 104.8, "f8": 419.0},
        sheet="NVIDIA RTX Blackwell GPU architecture white paper, appendix A",
    ),
    "rtxpro6000": _gpu(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm_120a", processors=188, cache_mb=128, copy=1792.0,
        flops={"f16": 503.8, "bf16": 503.8, "tf32": 251.9, "f32": 125.0, "f8": 1007.6},
        sheet=f"{MODEL}: NVIDIA RTX PRO 6000 Blackwell data sheet; products an eighth and less of its sparse FP4 rate",
    ),
}  # fmt: skip

ARCHITECTURES: dict[str, tuple[str, ...]] = {  # by target
    "cuda": tuple(dict.fromkeys(d.architecture for d in DEVICES.values())), "cpu": ("x86-64",),
}  # fmt: skip


def alike(device: Device) -> tuple[str, ...]:
    """The names of other GPUs of the table that are of its architecture."""
    return tuple(d.name for d in DEVICES.values() if d.architecture == device.architecture and d.name != device.name)


def device_of(machine: Machine) -> Device:
    """The Device of a machine: what is queried and measured on it, over the description of its kind.

    Rates that a description has from a measurement stay as they are, so that the order of points does not depend on a
    machine's last measurement; vendors' and estimated rates give way to the machine's own."""
    own = measured_device(machine)
    if own.target == "cpu":
        return own
    described = next((d for d in DEVICES.values() if d.name == machine.device), None)
    if described is None:
        return CAPABILITIES.get(own.architecture, _LEAST).of(own)
    found = replace(described, processors=own.processors or described.processors)
    if own.cache_bytes:
        found = replace(found, cache_bytes=own.cache_bytes)
    if is_measured(described) or not own.flops_per_ns:
        return found
    rates = dict(described.flops_per_ns) | dict(own.flops_per_ns)
    return replace(
        found, copy_bytes_per_ns=own.copy_bytes_per_ns, flops_per_ns=tuple(sorted(rates.items())),
        sources=tuple((dict(described.sources) | dict(own.sources)).items()),
    )  # fmt: skip
