"""Pages of Nsight Compute's reports, as it printed them: launches with metrics in base units, rules, hot instructions.

The pages in `ncu/` were made on an H200 on 2026-11-22 by ncu 2025.3.1 with the command lines of edges/sandbox/ncu.py
(columns, and rows of instructions, that nothing reads are left out): `first` with the sections of the first look at
five kernels (a scaled copy, a chase of pointers in two CTAs, conflicts in shared memory, spilled registers, loads 128
bytes apart), `all` with further ones, `chosen` of the third alone; `product` of a bf16 product, GELU and
softmax of torch's.
"""

from __future__ import annotations

from pathlib import Path

from fakes.facts import MACHINE
from tilewright.facts.problem import Work
from tilewright.facts.profile import HotSpot, Limit
from tilewright.judge.profile.changes import diagnosis
from tilewright.judge.profile.counters import Advice, advice, counted, hot_spots
from tilewright.judge.profile.limits import ProfiledCall, by_counters

PAGES = Path(__file__).parent / "ncu"
WORK = Work(bytes_read=1 << 28, bytes_written=1 << 28, matmul_flops=0, conv_flops=0, dtype="f32")
CALL = ProfiledCall(MACHINE, WORK, 1e6)


def page(name: str) -> str:
    return (PAGES / f"{name}.csv").read_text()


def limits(name: str) -> dict[str, Limit]:
    return {k.name.split("(")[0]: by_counters(k, times=1).limit for k in counted(page(name))}


def test_launches_are_told_apart_and_units_are_kept() -> None:
    copy, chase, *_ = counted("==PROF== Connected to process 5881\n" + page("all.raw"))
    assert copy.name == "stream_copy(const float4 *, float4 *, int)"
    assert {n: (m.value, m.unit) for n, m in copy.metrics.items() if n in (
        "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__cycles_elapsed.avg.per_second",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "launch__waves_per_multiprocessor",
    )} == {
        "gpu__time_duration.sum": (124864.0, "ns"), "dram__bytes_read.sum": (268443392.0, "byte"),
        "dram__cycles_elapsed.avg.per_second": (3198701520.59, "Hz"),
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": (85.34, "%"),
        "launch__waves_per_multiprocessor": (62.06, ""),
    }  # fmt: skip
    assert chase.get("nothing", "launch__grid_size") == 2 and chase.get("nothing") is None
    scaled = page("all.raw").replace('"ns"', '"us"', 1).replace('"byte"', '"Mbyte"', 1)
    assert counted(scaled)[0].get("gpu__time_duration.sum") == 124864e3
    assert counted(scaled)[0].metrics["dram__bytes_read.sum"].unit == "byte"


def test_each_kernel_is_limited_by_what_it_was_written_to_be_limited_by() -> None:
    assert limits("all.raw") == {
        "stream_copy": "memory", "chase": "parallelism", "conflicts": "shared memory", "spilling": "spills",
        "strided": "memory",
    }  # fmt: skip
    assert limits("first.raw") == limits("all.raw") | {
        "conflicts": "cache",
        "spilling": "memory",
    }  # no counters of those
    nvjet, gelu, softmax = (by_counters(k, times=1) for k in counted(page("product.raw")))
    assert (nvjet.limit, nvjet.origin) == ("tensor cores", "cuBLAS")
    assert (gelu.origin, softmax.origin, softmax.limit) == ("torch", "torch", "arithmetic")
    assert {m.name: m.text for m in nvjet.evidence}["tensor cores, of their peak"] == "94.8%"


def test_evidence_and_changes_name_the_cause() -> None:
    copy, chase, conflicts, spilling, strided = (by_counters(k, times=2) for k in counted(page("all.raw")))
    told = {m.name: m.text for m in conflicts.evidence}
    assert (told["passes lost to bank conflicts"], told["threads a CTA"], conflicts.ns) == (
        "96.7%",
        "256",
        2 * 1270624.0,
    )
    assert [m.name for m in conflicts.stalls] == ["mio throttle", "short scoreboard", "barrier"]
    assert {m.name: m.text for m in spilling.evidence}["instructions on local memory"] == "59%"
    assert "256 MB" not in {m.text for m in copy.evidence} and {m.text for m in copy.evidence} >= {"268 MB", "244 MB"}
    firsts = [diagnosis((k,), CALL).changes[0].split(": ", 1)[1] for k in (copy, chase, conflicts, spilling, strided)]
    for said, begins in zip(
        firsts, ("move fewer bytes", "more CTAs", "another layout in shared", "no spills", "4 of 32 bytes"), strict=True
    ):
        assert said.startswith(begins), firsts


def test_rules_that_reckon_with_the_kernels_time_are_told() -> None:
    found = advice(page("chosen.details"))
    assert [(a.launch, a.rule, round(a.speedup, 4)) for a in found if a.speedup > 0.5] == [
        (2, "SharedMemoryConflicts", 0.9651), (2, "UncoalescedSharedAccess", 0.9623),
    ]  # fmt: skip
    assert {"MemoryL2Compression", "CPIStall", "IssueSlotUtilization"}.isdisjoint(a.rule for a in found)
    assert isinstance(found[0], Advice) and "32.0 - way bank conflict" in found[0].text


def test_instructions_at_which_warps_wait_are_told_with_what_for() -> None:
    hot = hot_spots(page("chosen.source"))
    assert (hot[0].where, hot[0].why) == ("FADD R21, R12, R21", "short scoreboard")  # the loaded is not there yet
    assert {h.why for h in hot[1:]} == {"mio throttle"} and all(h.where.startswith("LDS R") for h in hot[1:])
    assert isinstance(hot[0], HotSpot) and 0.1 < hot[0].share < 0.5


def test_what_is_no_table_holds_nothing() -> None:
    for text in ("", "==ERROR== oh", "a,b\n1,2", '"ID","Kernel Name"', '"unfinished'):
        assert (counted(text), advice(text), hot_spots(text)) == ((), (), ())
    cut = page("all.raw")[:-300]
    assert [k.name.split("(")[0] for k in counted(cut)] == ["stream_copy", "chase", "conflicts", "spilling"]
