"""benchmarks/pages.py: the tables of README.md and docs/ say what the result files hold."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "benchmarks" / "pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pages"] = module
    spec.loader.exec_module(module)
    return module


SCRIPT = loaded()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The pages and the result files, to be changed."""
    shutil.copy(ROOT / "README.md", tmp_path / "README.md")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    return tmp_path


@pytest.mark.parametrize("page", SCRIPT.pages(ROOT), ids=lambda p: p.name)
def test_the_page_says_what_the_files_hold(page: Path) -> None:
    results = SCRIPT.Results(ROOT / "benchmarks" / "results")
    assert page.read_text() == SCRIPT.again(page.read_text(), results), "run: python -m benchmarks.pages"


def test_every_table_stands_in_a_page() -> None:
    named = {name for page in SCRIPT.pages(ROOT) for _, name, _ in SCRIPT._BLOCK.findall(page.read_text())}
    assert named == set(SCRIPT.TABLES)


def test_a_figure_that_moved_is_told_and_then_written(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--root", str(checkout)]
    assert SCRIPT.main([*asked, "--check"]) == 0
    file = checkout / "benchmarks" / "results" / "h200" / "kernelbench-level1.json"
    result = json.loads(file.read_text())
    for task in result["tasks"]:
        if task.get("ratio", {}).get("eager"):
            task["ratio"]["eager"]["mid"] *= 2
    file.write_text(json.dumps(result))
    assert SCRIPT.main([*asked, "--check"]) == 1
    assert "out of date: README.md" in capsys.readouterr().out
    assert SCRIPT.main(asked) == 0 and SCRIPT.main([*asked, "--check"]) == 0
    (row,) = (line for line in (checkout / "README.md").read_text().splitlines() if "level 1, memory-bound" in line)
    before = next(line for line in (ROOT / "README.md").read_text().splitlines() if "level 1, memory-bound" in line)
    assert row != before


def test_a_kept_or_failed_task_counts_as_one_and_the_faster_other_is_the_better() -> None:
    ratio = {"eager": {"mid": 3.0}, "compile": {"mid": 1.5}}
    assert SCRIPT.over({"ratio": ratio}) == 3.0 and SCRIPT.over({"ratio": ratio}, other="best") == 1.5
    kept = {"ratio": {}, "times_ns": {"eager": {"mid": 20}, "compile": {"mid": 10}}}
    assert SCRIPT.over(kept) == 1.0 and SCRIPT.over(kept, other="best") == 0.5
    declared = {"ratio": {"eager": {"mid": 30.0}}, "algebra": {"without": {"mid": 4.0}}}
    assert SCRIPT.over(declared) == 30.0 and SCRIPT.over(declared, algebra=False) == 4.0


def test_every_result_file_that_is_named_exists() -> None:
    """In docs/measured.md a name without a folder lies in h200/."""
    folder = ROOT / "benchmarks" / "results"
    named = re.findall(r"`(?:benchmarks/results/)?([\w/-]+\.json)`", (ROOT / "docs" / "measured.md").read_text())
    assert len(named) > 60
    assert [name for name in named if not (folder / (name if "/" in name else f"h200/{name}")).exists()] == []


def test_a_block_without_a_table_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        SCRIPT.again("<!-- table: nothing -->\n<!-- end -->", SCRIPT.Results(ROOT))
