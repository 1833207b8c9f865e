"""benchmarks/product_winners.py: which patterns it finds, and what it says of what was measured."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.realisers import gpu
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Interval, PointTime, Tuned
from tilewright.facts.pattern import Pattern
from tilewright.facts.run import Matched
from tilewright.run.winners import known_winners

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HERE = Machine(
    target="cuda", device="NVIDIA H200", driver="580", torch="2.11.0", dsl="4.8.1", processors=132,
    cache_bytes=50 << 20, copy_bytes_per_s=4e12, matmul_flops_per_s=(("f32", 5e13), ("bf16", 7e14)),
)  # fmt: skip
MODULE = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, k, columns):
        super().__init__()
        self.inner = nn.Linear(k, columns)

    def forward(self, x):
        return torch.relu(self.inner(x))


def get_inputs():
    return [torch.rand(512, 4096)]


def get_init_inputs():
    return [4096, 4096]
"""


@pytest.fixture(scope="module")
def script() -> Any:
    path = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("product_winners", BENCHMARKS / "product_winners.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path


@pytest.fixture(scope="module")
def pattern(script: Any, tmp_path_factory: Any) -> Pattern:
    kernelbench, folder = (tmp_path_factory.mktemp(name) for name in ("kernelbench", "problems"))
    for level, names in (("level1", ("1_one.py", "5_none.py")), ("level2", ("9_two.py",))):
        (kernelbench / level).mkdir()
        for name in names:
            (kernelbench / level / name).write_text(MODULE)
    copied = [f.name for place in script.files(kernelbench, ["fp32"], folder) for f in place.iterdir()]
    assert copied == ["1_one.py", "9_two.py"], "tasks that are no products are left out"
    (found, beside) = script.patterns_in(iter([folder / "level1", folder / "level2"]))
    assert isinstance(found, Pattern) and found.kind == "product" and len(found.space.points) > 3
    assert beside.kind == "pointwise", "of which a module may be made without the product's kernel"
    return found


def tuned(pattern: Pattern, *times_us: float | None) -> Tuned:
    points = []
    for at, us in zip(pattern.space.points, times_us, strict=False):
        interval = None if us is None else Interval(low=us * 990, mid=us * 1e3, high=us * 1010)
        points.append(PointTime(point=at, time_ns=interval, failure="" if us else "off by 1"))
    return Tuned(points=tuple(points))


def test_the_fastest_is_remembered_and_believed_with_these_skeletons(
    script: Any, pattern: Pattern, tmp_path: Path
) -> None:
    found, into = tuned(pattern, 500.0, None, 400.0), tmp_path / "winners.db"
    winner = script.winner_of(pattern, found, HERE)
    script.remember(into, winner)
    record = script.record_of(pattern, found, winner, 1.5)
    assert (record["us"], record["first_over_best"], record["points"], record["seconds"]) == (400.0, 1.25, 3, 1.5)
    assert record["floor_share"] == pytest.approx(0.86, abs=0.005) and record["sizes"] == [1, 512, 4096, 4096]
    assert record["won"] == " ".join(f"{k}={v}" for k, v in pattern.space.points[2])
    matched = (Matched(case=0, patterns=(pattern,), unmatched=()),)
    remembered, hinted = known_winners(matched, HERE, winners=into, shipped=tmp_path / "none")
    assert [c.point for c in remembered] == [pattern.space.points[2]] and not hinted
    other = replace(HERE, torch="2.12.0")
    assert [len(found) for found in known_winners(matched, other, winners=into, shipped=tmp_path / "none")] == [
        0,
        1,
    ]


def test_what_nothing_ran_of_is_told_and_not_remembered(script: Any, pattern: Pattern, tmp_path: Path) -> None:
    assert script.winner_of(pattern, tuned(pattern, None, None), HERE) is None
    best = script.winner_of(pattern, tuned(pattern, 400.0), HERE)
    flops, moved = 2 * 512 * 4096 * 4096, 4 * (512 * 4096 + 4096 * 4096 + 4096 + 512 * 4096)
    assert best.floor_share == pytest.approx(max(flops / 5e13, moved / 4e12) / 400e-6, rel=1e-6)


@pytest.mark.slow
def test_each_point_is_a_module_that_is_compiled(script: Any, pattern: Pattern, tmp_path: Path) -> None:
    points = (*pattern.space.points[:2], (("schedule", "none"),))
    few = replace(pattern, space=replace(pattern.space, points=points))
    made = script.modules(few, tmp_path, gpu())
    assert [hasattr(made[at], "run") for at in points] == [True, True, False] and "legal are" in made[points[2]]
    assert made[points[0]] is not made[points[1]] and list((tmp_path / "build").iterdir())
