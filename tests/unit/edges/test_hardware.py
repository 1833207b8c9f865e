"""What a prompt is told of a processor: as procfs and sysfs have it, and of a GPU as its description has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tilewright.edges.gpu.hardware import hardware
from tilewright.facts.device import measured_device
from tilewright.facts.devices import DEVICES
from tilewright.facts.machine import Machine

CPU = measured_device(
    Machine(
        target="cpu", device="x", driver="", torch="", dsl="", processors=2, cache_bytes=0, copy_bytes_per_s=1.0,
        matmul_flops_per_s=(("f32", 1.0),),
    )
)  # fmt: skip


def test_instruction_sets_and_caches_of_a_cpu(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu sse4_2 avx avx2 fma avx512f amx_tile ht\n")
    for number, (level, kind, size) in enumerate(
        [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K")]
    ):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    assert hardware(CPU, cpuinfo=info, caches=tmp_path) == (
        "instruction sets: sse4_2, avx, avx2, fma, avx512f, amx_tile; vectors of 64 bytes",
        "caches of one core: L1 48 KiB data, L2 2048 KiB",
    )
    assert hardware(CPU, cpuinfo=tmp_path / "none", caches=tmp_path / "none") == ()


def test_limits_of_a_gpu() -> None:
    lines = "\n".join(hardware(DEVICES["h100"]))
    assert "132 multiprocessors (sm_90a): 228 KiB of shared memory, at most 227 a CTA" in lines
    assert "clusters of up to 16 CTAs" in lines and "L2 cache: 50 MiB" in lines
    assert "no clusters" in "\n".join(hardware(DEVICES["a100"]))
    assert hardware(replace(DEVICES["h100"], shared_bytes=0)) == ()
