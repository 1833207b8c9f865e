"""What limits a call and what is likely to pay, from evidence of every kind."""

from __future__ import annotations

import pytest

from fakes.facts import MACHINE
from fakes.runs import MACHINE as H200
from tilewright.facts.outcome import Launches
from tilewright.facts.problem import Work
from tilewright.facts.profile import KernelProfile, Limit, Measure
from tilewright.judge.candidate_process.profile import launch_of
from tilewright.judge.profile.changes import diagnosis, of_operators
from tilewright.judge.profile.counters import Advice
from tilewright.judge.profile.limits import ProfiledCall, by_launches
from tilewright.judge.wire.messages import SpentClocks

WORK = Work(bytes_read=1 << 28, bytes_written=1 << 28, matmul_flops=0, conv_flops=0, dtype="f32")
CALL = ProfiledCall(MACHINE, WORK, 1e6)


def kernel(name: str = "mine", ns: float = 8e5, limit: Limit = "memory", **evidence: float) -> KernelProfile:
    told = tuple(Measure(name=n.replace("_", " "), value=v) for n, v in evidence.items())
    return KernelProfile(name=name, origin="own", source="ncu", times=1, ns=ns, limit=limit, evidence=told)


def test_the_longest_kernels_changes_come_first_and_three_are_told() -> None:
    small = kernel("small", 1e5, "parallelism")
    stalled = KernelProfile(
        name="void big<int>(float*)", origin="own", source="ncu", times=1, ns=8e5, limit="latency", evidence=(),
        stalls=(Measure(name="long scoreboard", value=70, unit="%"), Measure(name="barrier", value=25, unit="%")),
    )  # fmt: skip
    found = diagnosis((small, stalled), CALL)
    assert found.limit == "big<int>, 80% of the call, is limited by latency: no unit is busy, warps wait"
    assert len(found.changes) == 3 and [k.name for k in found.kernels] == ["void big<int>(float*)", "small"]
    assert found.changes[0].startswith("big<int>: 70% of waiting is long scoreboard: more loads in flight")
    assert found.changes[1].startswith("big<int>: 25% of waiting is barrier")
    assert found.changes[2].startswith("small: more CTAs")


def test_a_rule_of_the_tools_own_counts_by_what_it_reckons_with() -> None:
    rules = (Advice(0, "Coalescing", "Only 4 of 32 bytes are used. Look at the source.", 0.87),
             Advice(0, "Quiet", "No number", 0.0))  # fmt: skip
    found = diagnosis((kernel(),), CALL, advice=rules)
    assert found.changes[0] == "mine: Only 4 of 32 bytes are used (a rule of ncu's)"
    assert len(found.changes) == 3 and not any("No number" in change for change in found.changes)


def test_a_call_that_the_host_cannot_feed_is_told_to_launch_less() -> None:
    found = diagnosis((kernel(ns=2e4),), ProfiledCall(MACHINE, WORK, 2e4), launches=Launches(count=12, cost_ns=5e3))
    assert found.limit == "limited by the host, which starts the kernels: 12 take it 60.0 us"
    assert found.changes[0] == "fewer kernels: 12 are started, 5.0 us of the host each"


@pytest.mark.parametrize(
    ("limit", "evidence", "said"),
    [
        ("memory", {"DRAM,_of_its_peak": 92.0}, "move fewer bytes (DRAM at 92%)"),
        ("cache", {}, "read each byte once"),
        ("shared memory", {"passes_lost_to_bank_conflicts": 80.0}, "another layout in shared memory"),
        ("spills", {"local_memory_a_thread": 64.0}, "no spills (64 bytes a thread)"),
        ("parallelism", {}, "more CTAs"),
        ("tensor cores", {}, "near the peak"),
        ("latency", {"occupancy_that_it_could_have": 12.5}, "more warps at once: at most 12%"),
        ("unknown", {"waves": 1.2}, "1.20 waves: the last is mostly empty"),
        ("unknown", {"occupancy_that_it_could_have": 100, "occupancy_that_it_had": 30}, "even work"),
    ],
)  # fmt: skip
def test_every_limit_has_its_first_change(limit: Limit, evidence: dict[str, float], said: str) -> None:
    found = diagnosis((kernel(limit=limit, **evidence),), CALL)
    assert found.changes[0].startswith(f"mine: {said}")


def test_launches_without_counters_bear_a_limit_where_they_have_most_of_the_call() -> None:
    ns = WORK.bytes_moved / H200.copy_bytes_per_s * 1e9 / 0.9  # at nine tenths of the measured bandwidth
    one = SpentClocks(name="mine", ns=ns, registers=40, shared_bytes=2048, threads=256, ctas=4000)
    found = by_launches([one], ProfiledCall(H200, WORK, ns))
    told = {m.name: m.text for m in found.evidence}
    assert found.limit == "memory" and told["least traffic, of the measured bandwidth"] == "90%"
    assert told["occupancy that it could have"] == "75%" and told["CTAs"] == "4000"
    slow = by_launches([one], ProfiledCall(H200, WORK, ns * 1.4))
    assert slow.limit == "memory" and by_launches([one], ProfiledCall(H200, WORK, ns * 3)).limit == "unknown"
    few = SpentClocks(name="mine", ns=ns * 4, registers=40, threads=256, ctas=H200.processors - 1)
    assert by_launches([few], ProfiledCall(H200, WORK, ns * 4)).limit == "parallelism"
    lame = SpentClocks(name="mine", ns=ns * 4, registers=40, threads=256, ctas=4000)
    assert by_launches([lame], ProfiledCall(H200, WORK, ns * 4)).limit == "latency"


def test_a_trace_tells_what_a_launch_took() -> None:
    event = {
        "ph": "X", "cat": "kernel", "name": "void mine(float*)", "dur": 12.5,
        "args": {"registers per thread": 32, "shared memory": 1024, "block": [256, 1, 1], "grid": [40, 3, 1]},
    }  # fmt: skip
    assert launch_of(event) == SpentClocks(
        name="void mine(float*)", ns=12500.0, registers=32, shared_bytes=1024, threads=256, ctas=120
    )
    copy = {"cat": "gpu_memcpy", "name": "Memcpy DtoD", "dur": 3, "args": {"bytes": 64}}
    assert launch_of(copy) == SpentClocks(name="Memcpy DtoD", ns=3000.0)


def test_on_the_cpu_the_distance_to_the_machines_rates_decides() -> None:
    ops = (KernelProfile(name="aten::mul", origin="torch", source="operators", times=2, ns=9e5, limit="unknown",
                         evidence=()),)  # fmt: skip
    far, near = of_operators(ops, ProfiledCall(MACHINE, WORK, 1e9)), of_operators(ops, ProfiledCall(MACHINE, WORK, 2e5))
    assert "work beyond the least" in far.limit and "memory's bandwidth" in near.limit
    assert "move fewer bytes" in near.changes[-1]
    assert diagnosis((), CALL).limit == "no kernel was seen"


def test_on_the_cpu_transcendental_functions_may_be_what_takes_the_time() -> None:
    own = (KernelProfile(name="mine", origin="own", source="operators", times=1, ns=1e9, limit="unknown", evidence=()),)
    call = ProfiledCall(MACHINE, WORK, 1e9, special=int(2.0e9 * MACHINE.processors))
    found = of_operators(own, call)
    assert "transcendental functions" in found.limit and "about 80%" in found.limit
    assert "fewer evaluations" in found.changes[0] and not any("one pass over memory" in c for c in found.changes)
    assert "beyond the least" in of_operators(own, ProfiledCall(MACHINE, WORK, 1e9, special=1000)).limit
