"""`tilewright discover`: one JSON object and a drawing of a file; a summary of a folder."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fakes.command import tilewright
from tilewright.report import discoveries_summary, discoveries_table, left_table
from tilewright.run.campaign import Campaign, problem_files, run_campaign

MODULE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(x * 2).sum(1)
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "1_small.py").write_text(MODULE)
    asked = ("discover", "tasks/1_small.py", "--target", "cpu", "--budget", "0.1s", "--json", "--svg", "g.svg")
    found = json.loads(tilewright(*asked, cwd=tmp_path))
    assert [c["operator"] for c in found["calls"]] == [
        "aten.mul.Tensor",
        "aten.sigmoid.default",
        "aten.sum.dim_IntList",
    ]
    assert [(p["pattern"], p["title"]) for p in found["parts"]] == [("fused_0", "scale -> sigmoid -> sum")]
    assert (tmp_path / "g.svg").read_text().startswith("<svg")


def test_a_folder_is_a_campaign_of_which_the_results_are_kept(tmp_path: Path) -> None:
    """What is kept is not made again: a result stands in for the child process, the other file has none to show."""
    (tmp_path / "tasks").mkdir()
    for name in ("1_kept.py", "2_no_problem.py"):
        (tmp_path / "tasks" / name).write_text("x = 1")
    part = {"pattern": "", "title": "conv2d", "why": "no skeleton", "rule": "", "share": 0.75}
    kept = {
        "problem": "1_kept", "module_ns": 1e6, "floor_ns": 1e5, "covered": 0.25, "gain": 0.2, "parts": [part],
        "stamp": "s", "flags": ["--target", "cpu", "--budget", "1s", "--seed", "0"],
    }  # fmt: skip
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "1_kept.json").write_text(json.dumps(kept))
    campaign = Campaign(
        files=problem_files(str(tmp_path / "tasks"), None), out=tmp_path / "out", target="cpu", budget_s=1.0,
        settings=("--seed", "0"), jobs=1, devices=(), stamp="s", verb="discover",
    )  # fmt: skip
    tasks = run_campaign(campaign, seen=lambda task: None)
    found = discoveries_summary(tasks)
    assert (found["tasks"], found["failed"], found["mean_covered"]) == (2, 1, 0.25)
    assert found["left"] == [{"what": "conv2d", "why": "no skeleton", "share": 0.75, "tasks": 1}]
    assert "no `Model`" in found["failures"][0]["summary"]
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(discoveries_table(tasks), left_table(tasks))
    text = console.export_text()
    assert "conv2d (75%; no skeleton)" in text and "2 tasks, 1 failed; in patterns, mean 25%" in text
