"""benchmarks/results_site.py: the committed results as a site, with the runs whose journals are kept."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
    made = script.committed(tmp_path / "site")
    statuses = {entry.status for entry in made.site.entries}
    assert statuses <= {"improved", "no_improvement", "failed", "unfinished"}, "nothing that is committed is damaged"
    level1 = json.loads((ROOT / "benchmarks" / "results" / "h200" / "kernelbench-level1.json").read_text())
    shown = {e.problem for e in made.site.entries if e.group == "results/h200/kernelbench-level1.json"}
    assert shown == {task["problem"] for task in level1["tasks"]}
    kept = list((ROOT / "benchmarks" / "journals").rglob("*.jsonl.xz"))
    assert len(made.site.places) == len(kept)
    leaderboard = (tmp_path / "site" / "index.html").read_text()
    (total,) = [
        line
        for line in leaderboard.splitlines()
        if 'scope="row" data-label="strategy">cutegen<' in line and "H200" in line
    ]
    assert 'data-label="won">100%' in total


def test_prompts_that_were_not_kept_are_worded_anew_and_say_so(script: ModuleType, tmp_path: Path) -> None:
    from tilewright.report.site import Site

    script.unpack(
        ROOT / "benchmarks" / "journals" / "cutegen" / "06_attention_bias.jsonl.xz", tmp_path / "runs" / "one"
    )
    site = Site.of([tmp_path / "runs"])
    page = site.render(f"runs/{site.entries[0].id}/dialogue.html")
    assert page is not None and page.data.decode().count("worded anew, as this version asks") >= 1
    assert "kept without the words" not in page.data.decode()
