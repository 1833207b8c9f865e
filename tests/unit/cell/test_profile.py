"""What a call spends its time in, as torch's profiler sees it on the CPU."""

from __future__ import annotations

import time

import torch

from tilewright.cell.profile import spent


def test_operators_are_named_and_nested_ones_counted_once() -> None:
    a = torch.randn(700, 700)
    found = spent("cpu", lambda: torch.relu(a @ a))
    by_name = {s.name: s.ns for s in found}
    assert {"aten::mm", "aten::matmul", "aten::relu"} <= set(by_name)
    assert next(s.name for s in found if s.name.startswith("aten::")) == "aten::mm"  # a busy machine adds time outside
    assert by_name["aten::matmul"] < 0.2 * by_name["aten::mm"]  # its own time, without what it calls


def test_time_outside_operators_is_named_too() -> None:
    found = spent("cpu", lambda: time.sleep(0.05))
    assert found[0].name == "outside torch's operators"
    assert 0.05e9 <= found[0].ns < 0.5e9
