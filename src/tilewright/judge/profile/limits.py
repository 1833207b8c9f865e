"""What limits a kernel, and the evidence: from hardware counters, from what the driver tells of a launch, or from the
machine code alone. Each says as much as its source can bear."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...facts.device import Device
from ...facts.devices import device_of
from ...facts.machine import Machine
from ...facts.problem import Work
from ...facts.profile import HotSpot, KernelProfile, Limit, Measure
from ..wire.messages import SpentClocks
from .code import SourceCode
from .counters import Counted
from .origins import origin

BUSY = 60.0  # % of its peak from which a unit is what a kernel waits for (Nsight Compute's own threshold)
_FEW_WAVES = 1.0
# Of one evaluation on one thread: a model's number, not measured (some twenty instructions on eight lanes, two a cycle
# at 3 GHz). It only tells "much of the time" from "little of it".
_SPECIAL_NS = 0.4
_BEHIND = 0.8
_HIGH_CONFLICTS = 0.3  # of the passes through shared memory
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
_TENSOR = r"sm__(inst_executed_)?pipe_tensor\w*\.avg\.pct_of_peak_sustained_active"

MEMORY = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
CACHE = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
L1 = "l1tex__throughput.avg.pct_of_peak_sustained_active"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
LOCAL = ("smsp__sass_inst_executed_op_local_ld.sum", "smsp__sass_inst_executed_op_local_st.sum")
INSTRUCTIONS = "smsp__inst_executed.sum"
WAVES = "launch__waves_per_multiprocessor"
DURATION = "gpu__time_duration.sum"

USED = "bytes used of 32 loaded"
# What a reader is shown: the metric, a name in words.
_SHOWN = (
    (MEMORY, "DRAM, of its peak"), (CACHE, "L2, of its peak"), (L1, "L1 and shared memory, of their peak"),
    (SM, "multiprocessors, of their peak"),
    ("dram__bytes_read.sum", "read from DRAM"), ("dram__bytes_write.sum", "written to DRAM"),
    ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio", USED),
    ("lts__t_sector_hit_rate.pct", "hits in L2"), ("l1tex__t_sector_hit_rate.pct", "hits in L1"),
    ("sm__maximum_warps_per_active_cycle_pct", "occupancy that it could have"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "occupancy that it had"),
    ("launch__registers_per_thread", "registers a thread"),
    ("launch__shared_mem_per_block", "shared memory a CTA"),
    ("launch__block_size", "threads a CTA"), ("launch__grid_size", "CTAs"), (WAVES, "waves"),
    ("smsp__issue_active.avg.pct_of_peak_sustained_active", "cycles in which an instruction was issued"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProfiledCall:
    """What is known of the call whose kernels are judged."""

    machine: Machine
    work: Work
    ns: float  # on the device, all kernels
    special: int = 0  # evaluations of transcendental functions, as the module's graph has them


def by_counters(launch: Counted, *, times: int, hot: tuple[HotSpot, ...] = ()) -> KernelProfile:
    """One kernel as Nsight Compute saw a launch of it, of `times` alike."""
    evidence = [_measure(launch, metric, name) for metric, name in _SHOWN if metric in launch.metrics]
    tensor = launch.most(_TENSOR)
    evidence += [Measure(name="tensor cores, of their peak", value=tensor, unit="%")] if tensor is not None else []
    conflicts, local = conflict_share(launch), local_share(launch)
    evidence += [Measure(name="passes lost to bank conflicts", value=conflicts * 100, unit="%")] if conflicts else []
    evidence += [Measure(name="instructions on local memory", value=local * 100, unit="%")] if local else []
    return KernelProfile(
        name=launch.name, origin=origin(launch.name, "cuda"), source="ncu", times=times,
        ns=times * (launch.get(DURATION) or 0.0), limit=_limit(launch), evidence=tuple(evidence),
        stalls=stalls(launch), hot=hot,
    )  # fmt: skip


def _limit(launch: Counted) -> Limit:
    memory, cache, l1, sm = (launch.get(m) or 0.0 for m in (MEMORY, CACHE, L1, SM))
    tensor = launch.most(_TENSOR) or 0.0
    waves = launch.get(WAVES)
    if max(memory, cache, l1, sm, tensor) < BUSY:
        return "parallelism" if waves is not None and waves < _FEW_WAVES else "latency"
    if local_share(launch) > 0.1:
        return "spills"
    if tensor >= BUSY and tensor >= memory:
        return "tensor cores"
    if memory >= BUSY and memory >= _BEHIND * max(cache, l1, sm):  # what comes from DRAM passes L2, which is busier
        return "memory"
    if max(cache, l1) >= sm:
        return "shared memory" if conflict_share(launch) > _HIGH_CONFLICTS else "cache"
    return "shared memory" if conflict_share(launch) > _HIGH_CONFLICTS and l1 >= BUSY else "arithmetic"


def conflict_share(launch: Counted) -> float:
    """Of the passes through shared memory, those that bank conflicts added; 0 where that was not counted."""
    conflicts, passes = launch.get(CONFLICTS), launch.get(WAVEFRONTS)
    return conflicts / passes if conflicts and passes else 0.0


def local_share(launch: Counted) -> float:
    """Of all instructions, those that read or write local memory; 0 where that was not counted."""
    local, all_of_them = sum(launch.get(name) or 0.0 for name in LOCAL), launch.get(INSTRUCTIONS)
    return local / all_of_them if all_of_them else 0.0


def stalls(launch: Counted) -> tuple[Measure, ...]:
    """Why warps waited, each as a share of their waiting; what is under 5% is left out."""
    found = {m[1]: v.value for n, v in launch.metrics.items() if (m := _STALL.fullmatch(n)) and m[1] != "selected"}
    total = sum(found.values())
    told = [Measure(name=n.replace("_", " "), value=100 * v / total, unit="%") for n, v in found.items() if v > 0]
    return tuple(sorted((m for m in told if m.value >= 5), key=lambda m: -m.value))


def by_launches(launches: Sequence[SpentClocks], call: ProfiledCall) -> KernelProfile:
    """One kernel as the driver tells of its launches (all alike), without counters: its time, and what a launch took of
    a multiprocessor. Rates are known of the whole call alone, so they say what limits a kernel that has most of it."""
    one, ns = launches[0], sum(s.ns for s in launches)
    evidence = [Measure(name="share of the call", value=100 * ns / call.ns, unit="%")]
    limit: Limit = "unknown"
    if one.threads:
        evidence += _of_a_launch(one, device_of(call.machine))
        if one.ctas < call.machine.processors and ns / len(launches) > 0:
            limit = "parallelism"
    if 2 * ns > call.ns:
        memory, products = rates(call)
        evidence += [memory] + ([products] if products.value else [])
        if max(memory.value, products.value) >= BUSY:
            limit = "memory" if memory.value >= products.value else "tensor cores"
        elif limit == "unknown":
            limit = "latency"
    return KernelProfile(
        name=one.name, origin=origin(one.name, "cuda"), source="CUPTI", times=len(launches), ns=ns, limit=limit,
        evidence=tuple(evidence),
    )  # fmt: skip


def _of_a_launch(one: SpentClocks, device: Device) -> list[Measure]:
    found = [
        Measure(name="registers a thread", value=one.registers),
        Measure(name="shared memory a CTA", value=one.shared_bytes, unit="byte"),
        Measure(name="threads a CTA", value=one.threads),
        Measure(name="CTAs", value=one.ctas),
    ]
    return [*found, *occupancy(one.registers, one.threads, one.shared_bytes, device)]


def occupancy(registers: int, threads: int, shared_bytes: int, device: Device) -> list[Measure]:
    """The most warps that a multiprocessor holds of such CTAs, of the warps that it can hold; [] where none fits."""
    held = device.resident_ctas(registers=registers, threads=threads, shared_bytes=shared_bytes)
    if not held:
        return []
    return [Measure(name="occupancy that it could have", value=100 * held * threads / device.threads, unit="%")]


def rates(call: ProfiledCall) -> tuple[Measure, Measure]:
    """The call's least traffic and its products, each over its time, in % of what this machine was measured to do."""
    memory = call.work.bytes_moved / (call.ns * 1e-9) / call.machine.copy_bytes_per_s
    products = call.work.flops / (call.ns * 1e-9) / call.machine.rate(call.work.dtype) if call.work.flops else 0.0
    return (
        Measure(name="least traffic, of the measured bandwidth", value=100 * memory, unit="%"),
        Measure(name="products, of the measured rate", value=100 * products, unit="%"),
    )


def transcendental_share(call: ProfiledCall) -> float:
    """The part of a call on the CPU that its transcendental functions take at least, in whole vectors on all threads,
    in %: a guess from _SPECIAL_NS."""
    return 100 * call.special * _SPECIAL_NS / (call.machine.processors * call.ns)


def by_code(code: SourceCode, device: Device) -> KernelProfile:
    """One kernel from its machine code: what it takes of a multiprocessor, and what its instructions are."""
    evidence = [
        Measure(name="registers a thread", value=code.registers),
        Measure(name="local memory a thread", value=code.local_bytes, unit="byte"),
        Measure(name="static shared memory a CTA", value=code.shared_bytes, unit="byte"),
    ]
    if code.threads:
        evidence += occupancy(code.registers, code.threads, code.shared_bytes, device)
    total = sum(m.value for m in code.mix)
    evidence += [Measure(name=f"instructions: {m.name}", value=100 * m.value / total, unit="%") for m in code.mix]
    return KernelProfile(
        name=code.name, origin=origin(code.name, "cuda"), source="code", times=1, ns=0.0,
        limit="spills" if code.local_bytes else "unknown", evidence=tuple(evidence),
    )  # fmt: skip


def _measure(launch: Counted, metric: str, name: str) -> Measure:
    found = launch.metrics[metric]
    return Measure(name=name, value=found.value, unit=_plain(found.unit))


def _plain(unit: str) -> str:
    return unit if unit in ("%", "byte", "byte/s", "ns", "Hz") else ""
