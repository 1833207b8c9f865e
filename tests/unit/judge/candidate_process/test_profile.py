"""What a call spends its time in, as torch's profiler sees it on the CPU."""

from __future__ import annotations

import time

import torch

from tilewright.judge.candidate_process.profile import spent


def test_operators_are_named_and_nested_ones_counted_once() -> None:
    a = torch.randn(700, 700)
    least: dict[str, int] = {}  # of several calls: a busy machine adds to any operator
    for _ in range(8):
        found = spent("cpu", lambda: torch.relu(a @ a))
        assert [s.ns for s in found] == sorted((s.ns for s in found), reverse=True), "the longest comes first"
        for s in found:
            least[s.name] = min(s.ns, least.get(s.name, s.ns))
    assert {"aten::mm", "aten::matmul", "aten::relu"} <= set(least)
    assert max((n for n in least if n.startswith("aten::")), key=least.__getitem__) == "aten::mm"
    assert least["aten::matmul"] < 0.2 * least["aten::mm"]  # its own time, without what it calls


def test_time_outside_operators_is_named_too() -> None:
    found = min((spent("cpu", lambda: time.sleep(0.05)) for _ in range(3)), key=lambda found: found[0].ns)
    assert found[0].name == "outside torch's operators"
    assert 0.05e9 <= found[0].ns < 5e9
