"""The model of small-M products against what was measured: `small-M-settings.json` of the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import ceil, exp, log
from pathlib import Path
from typing import Any

import pytest

from fakes.realisers import H200
from tilewright.realise.gemm.small_m import resident, work_ns
from tilewright.realise.gemm.time import DEPTH

MEASURED = Path(__file__).parents[3] / "benchmarks" / "results" / "h200" / "skinny-settings.json"


def times(task: dict[str, Any]) -> Iterator[tuple[float, float]]:
    """(the model's, the measured) ns of each setting that a small-M kernel takes."""
    few, many = sorted((task["m"], task["n"]))
    assert few <= 64 < many
    for name, measured in task["us"].items():
        tile, *rest = name.split()
        knobs = dict(pair.split("=") for pair in rest)
        small, wide = map(int, tile.split("x"))
        if "sum" in knobs:  # another kernel
            continue
        groups, stage_bytes = 2 if wide == 128 else 1, (small + wide) * 2 * DEPTH
        if knobs["stages"] == "auto":  # as many as leave room for so many CTAs
            places = 2 if groups == 2 else 3
            stages = min((227 * 1024 // places - 2048) // stage_bytes, 8)
        else:
            stages = int(knobs["stages"])
            places = resident(stages, stage_bytes, warpgroups=groups, device=H200)
        model = work_ns(
                ceil(many / wide), ceil(task["k"] / DEPTH), parts=int(knobs["split_k"]), stages=stages, resident=places,
            large_bytes=wide * 2 * DEPTH, sums=small * wide, device=H200,
        )  # fmt: skip
        for us in measured if isinstance(measured, list) else [measured]:
            yield model, us * 1e3


def test_it_foresees_what_was_measured() -> None:
    """The figures of its docstring."""
    tasks = [list(times(task)) for task in json.loads(MEASURED.read_text())["tasks"]]
    every = [pair for task in tasks for pair in task]
    off = (sum(log(model / measured) ** 2 for model, measured in every) / len(every)) ** 0.5
    firsts = [min(task)[1] / min(measured for _, measured in task) for task in tasks]
    assert (len(every), len(tasks)) == (519, 17)
    assert off == pytest.approx(0.069, abs=0.0005)
    assert exp(sum(map(log, firsts)) / len(firsts)) == pytest.approx(1.011, abs=0.0005)
    assert max(firsts) == pytest.approx(1.05, abs=0.005)
