"""benchmarks/results_site.py: the committed results as a site, with the runs whose journals are kept."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tilewright.report.site import Site
from tilewright.report.site.board import totals

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("results_site", ROOT / "benchmarks" / "results_site.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return module


def test_every_judged_task_and_every_kept_journal_has_its_place(script: ModuleType, tmp_path: Path) -> None:
    site = Site.of(script.folders(tmp_path))
    statuses = {entry.status for entry in site.entries}
    assert statuses <= {"improved", "no_improvement", "failed", "unfinished"}, "nothing that is committed is damaged"
    level1 = json.loads((ROOT / "benchmarks" / "results" / "h200" / "kernelbench-level1.json").read_text())
    shown = {e.problem for e in site.entries if e.group == "results/h200/kernelbench-level1.json"}
    assert shown == {task["problem"] for task in level1["tasks"]}
    summary = level1["summary"]
    (total,) = totals([e for e in site.entries if e.group == "results/h200/kernelbench-level1.json"])
    assert total.eager == f"{summary['geomean_eager']:.2f}×" and total.best == f"{summary['geomean_best']:.2f}×"
    assert total.passed == tuple(f"{share:.0%}" for share in summary["fast_p"].values())
    kept = list((ROOT / "benchmarks" / "journals").rglob("*.jsonl.xz"))
    assert len(site.places) == len(kept)
    leaderboard = site.render("index.html")
    assert leaderboard is not None
    rows = re.findall(
        r'<tr><th scope="row" data-label="strategy">cutegen<.*?</tr>', leaderboard.data.decode(), re.DOTALL
    )
    assert [row for row in rows if "NVIDIA H200" in row and 'data-label="won">100%' in row]


def test_prompts_that_were_not_kept_are_worded_anew_and_say_so(script: ModuleType, tmp_path: Path) -> None:
    script.unpack(
        ROOT / "benchmarks" / "journals" / "cutegen" / "06_attention_bias.jsonl.xz", tmp_path / "runs" / "one"
    )
    site = Site.of([tmp_path / "runs"])
    page = site.render(f"runs/{site.entries[0].id}/dialogue.html")
    assert page is not None and page.data.decode().count("worded anew, as this version asks") >= 1
    assert "kept without the words" not in page.data.decode()
