"""benchmarks/common_shapes.py: each file is a problem whose module is one kernel on a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from fakes.realisers import cuda
from tilewright.frontend.trace import trace
from tilewright.fusion import match

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "common_shapes.py"
spec = importlib.util.spec_from_file_location("common_shapes", SCRIPT)
assert spec is not None and spec.loader is not None
common_shapes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(common_shapes)


@pytest.mark.parametrize("operation", common_shapes.OPERATIONS)
def test_each_is_one_kernel_of_many_rows(operation: str) -> None:
    found = []
    for rows in (2048, 2064):
        names: dict[str, object] = {}
        exec(common_shapes.problem(operation, rows=rows, width=64, dtype="bf16"), names)
        graph = trace(names["Model"](), tuple(names["get_inputs"]()), {})  # type: ignore[operator]
        found.append(match(graph, unsupported=cuda.unsupported, space=cuda.space))
        assert not found[-1].unmatched
    one, other = (m.patterns for m in found)
    assert len(one) == len(other) == 1 + (operation == "cross_entropy"), "a loss adds up what its rows gave"
    assert one[0].shape_class == other[0].shape_class, "a winner serves other numbers of rows, too"
