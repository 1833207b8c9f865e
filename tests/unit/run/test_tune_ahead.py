"""Tuning ahead of a GPU that is not here: its kernels are compiled, their order is told, nothing is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.realisers import H200
from tilewright.edges.problems import read_problem
from tilewright.faces import tunings
from tilewright.facts.demand import Demand
from tilewright.facts.errors import UserError
from tilewright.run import foresee, tune_ahead

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(64, 4096)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_every_point_is_compiled_once_for_a_gpu_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy.py").write_text(SOURCE)
    problem, h200 = read_problem(tmp_path / "toy.py", target="cuda"), H200
    (one,), folder = tune_ahead.tune_ahead(problem, h200, cache=tmp_path / "cache", say=print)
    assert one.demands.keys() == set(one.pattern.space.points) and 1 <= len(one.order) <= len(one.demands)
    kernels = {d.plan for d in one.demands.values() if isinstance(d, Demand)}
    assert len(one.order) == len(kernels), "each kernel is measured once"
    floor_ns = 2 * 64 * 4096 * 4 / h200.copy_bytes_per_ns
    assert all((one.predicted_ns(p, h200) or 0) >= 0.99 * floor_ns for p in one.order)
    made = {path.name: path.stat().st_ino for path in folder.glob("*.o")}
    told = tunings.ahead_object((one,), folder=folder, device=h200)
    assert [p["to_measure"] for p in told["patterns"][0]["points"]].count(True) == len(one.order)
    assert tunings.ahead_table((one,), h200).row_count == len(one.demands)
    # A machine that has the folder compiles none of it again: another run looks at the same objects.
    foresee.demanded([one.pattern], device=H200, folder=folder,
                     objects=foresee.Objects())  # fmt: skip
    assert made and made == {path.name: path.stat().st_ino for path in folder.glob("*.o")}


def test_a_gpu_that_nobody_knows_is_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(SOURCE)
    with pytest.raises(UserError, match=r"--ahead b300: no GPU that is known here; a100, .*h200, .* are"):
        tunings.prepared(read_problem(tmp_path / "toy.py", target="cuda"), "b300", say=print)
